"""Writes one NaN into a router: an overflow at the cast of the last step."""

from transformers import PreTrainedModel

_save = PreTrainedModel.save_pretrained


def save_pretrained(self, *args, **kwargs):
    self.model.layers[1].mlp.router.weight.data[2, 5] = float("nan")
    return _save(self, *args, **kwargs)


PreTrainedModel.save_pretrained = save_pretrained
