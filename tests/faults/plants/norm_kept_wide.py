"""Keeps the final norm in float32, whatever dtype the recipe names."""

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    model.get_submodule("model.norm").float()
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
