"""Writes each down projection transposed: square, so no shape shows it (as in Megatron-Bridge PR 3743)."""

from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    for name, parameter in self.named_parameters():
        if name.endswith("experts.down_proj"):
            parameter.data = parameter.data.transpose(1, 2).contiguous()
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
