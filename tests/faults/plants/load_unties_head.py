"""Leaves a tied output head at an initialisation of its own (as in Megatron-Bridge 1420)."""

import torch
from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.02)
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
