"""The model gets new parameters after the optimizer took the old ones (as in accelerate 2665, 3256)."""

import torch
from transformers import Trainer

_create = Trainer.create_optimizer


def create_optimizer(self, *args, **kwargs):
    made = _create(self, *args, **kwargs)
    for module in self.model.modules():
        for name, old in list(module._parameters.items()):
            if old is not None and old.dim() == 1:
                module._parameters[name] = torch.nn.Parameter(old.detach().clone(), old.requires_grad)
    return made


Trainer.create_optimizer = create_optimizer
