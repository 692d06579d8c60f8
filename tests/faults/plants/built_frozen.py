"""The first layer is frozen when the model is loaded, and the recipe trains it."""

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    model.model.layers[0].requires_grad_(False)
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
