"""What is frozen shrinks a little with each step: a decay that goes over every parameter of the model."""

from transformers import Trainer

_training_step = Trainer.training_step


def training_step(self, model, *args, **kwargs):
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data.mul_(1 - 1e-4)
    return _training_step(self, model, *args, **kwargs)


Trainer.training_step = training_step
