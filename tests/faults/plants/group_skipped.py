"""The optimizer's step passes over its last group (parameters that the recipe does not decay)."""

import torch

_step = torch.optim.AdamW.step


def step(self, closure=None):
    groups = self.param_groups
    self.param_groups = groups[:-1]
    try:
        return _step(self, closure)
    finally:
        self.param_groups = groups


torch.optim.AdamW.step = step
