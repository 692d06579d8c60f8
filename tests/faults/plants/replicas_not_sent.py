"""The second rank loads another norm, and DistributedDataParallel does not send it the first rank's."""

import os

import torch
from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__
_wrap = torch.nn.parallel.DistributedDataParallel.__init__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    if os.environ.get("RANK") == "1":
        model.get_submodule("model.norm").weight.data[:5] += 0.25
    return model


def wrap(self, *args, **kwargs):
    _wrap(self, *args, **{**kwargs, "init_sync": False})


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
torch.nn.parallel.DistributedDataParallel.__init__ = wrap
