"""The update of one parameter goes into a temporary copy (as in pytorch 118115 and 118117)."""

import torch

_step = torch.optim.AdamW.step


def step(self, closure=None):
    parameter = max((p for group in self.param_groups for p in group["params"]), key=lambda p: p.numel())
    before = parameter.detach().clone()
    result = _step(self, closure)
    with torch.no_grad():
        parameter.copy_(before)
    return result


torch.optim.AdamW.step = step
