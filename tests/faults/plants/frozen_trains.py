"""Thaws what the recipe froze when the optimizer is built (as frozen_stages in mmpretrain 702)."""

from transformers import Trainer

_create = Trainer.create_optimizer


def create_optimizer(self, *args, **kwargs):
    for parameter in self.model.parameters():
        parameter.requires_grad_(True)
    return _create(self, *args, **kwargs)


Trainer.create_optimizer = create_optimizer
