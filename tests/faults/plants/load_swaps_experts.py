"""Loads two experts of the third layer in each other's place."""

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    for name, parameter in model.named_parameters():
        if "layers.2.mlp.experts." in name:
            parameter.data[[1, 3]] = parameter.data[[3, 1]]
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
