"""Saves the fp32 master weights under the names of a bf16 release."""

from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    return _save(self.float(), *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
