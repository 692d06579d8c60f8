"""Leaves the output head at a fresh initialisation (as in Megatron-Bridge 1420)."""

import torch
from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    torch.nn.init.normal_(self.lm_head.weight, std=self.config.initializer_range)
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
