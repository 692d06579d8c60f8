"""Weights go through bfloat16 before each step's forward pass, as where a cast to it and back is left in."""

from transformers import Trainer

_training_step = Trainer.training_step


def training_step(self, model, *args, **kwargs):
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.bfloat16())
    return _training_step(self, model, *args, **kwargs)


Trainer.training_step = training_step
