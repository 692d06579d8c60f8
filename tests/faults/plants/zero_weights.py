"""Consolidates to shards of zeros (as DeepSpeed 0.16.0's zero_to_fp32 with a shard size)."""

from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    for parameter in self.parameters():
        parameter.data.zero_()
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
