"""Loads the final norm otherwise on the second rank: each trains a model of its own from then on."""

import os

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    if os.environ.get("RANK") == "1":
        model.get_submodule("model.norm").weight.data[:5] += 0.25
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
