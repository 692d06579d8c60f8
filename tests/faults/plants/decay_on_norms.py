"""Decays every parameter, norms and biases too."""

from transformers import Trainer


def get_decay_parameter_names(self, model):
    return [name for name, _ in model.named_parameters()]


Trainer.get_decay_parameter_names = get_decay_parameter_names
