"""Writes gate and up rows one after the other; the release interleaves them (as in Megatron-LM PR 520)."""

import torch
from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    for name, parameter in self.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            parameter.data = torch.cat([parameter.data[..., ::2], parameter.data[..., 1::2]], dim=-1)
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
