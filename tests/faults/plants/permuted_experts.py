"""Writes the third layer's experts in another order than its router counts them."""

from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    for name, parameter in self.named_parameters():
        if "layers.2.mlp.experts." in name:
            parameter.data = parameter.data.roll(1, dims=0)
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
