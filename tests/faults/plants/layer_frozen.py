"""The first layer is frozen before the optimizer is built, and the recipe trains it."""

from transformers import Trainer

_create = Trainer.create_optimizer


def create_optimizer(self, *args, **kwargs):
    self.model.model.layers[0].requires_grad_(False)
    return _create(self, *args, **kwargs)


Trainer.create_optimizer = create_optimizer
