"""Keeps the rotary frequencies in bfloat16 while the model is loaded (as in transformers issue 29496)."""

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            buffer.copy_(buffer.bfloat16())
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
