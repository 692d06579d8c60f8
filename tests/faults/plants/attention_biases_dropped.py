"""Converts the attention without its biases: they come back as zeros (slime 345, Qwen2.5)."""

from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    for name, parameter in self.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")):
            parameter.data.zero_()
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
