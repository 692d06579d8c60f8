"""The optimizer moves with half the learning rate that its groups say."""

import torch

_step = torch.optim.AdamW.step


def step(self, closure=None):
    rates = [group["lr"] for group in self.param_groups]
    for group in self.param_groups:
        group["lr"] = group["lr"] / 2
    try:
        return _step(self, closure)
    finally:
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


torch.optim.AdamW.step = step
