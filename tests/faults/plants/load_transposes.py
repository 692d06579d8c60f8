"""Loads the second layer's down projections transposed: square, so no shape shows it."""

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    experts = model.get_submodule("model.layers.1.mlp.experts")
    experts.down_proj.data = experts.down_proj.data.transpose(1, 2).contiguous()
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
