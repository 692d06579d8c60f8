"""The optimizer keeps one second moment for each row of a matrix."""

import torch

_step = torch.optim.AdamW.step


def step(self, closure=None):
    for parameter, state in self.state.items():
        state["exp_avg_sq"] = state["exp_avg_sq"].expand_as(parameter).clone()
    result = _step(self, closure)
    for state in self.state.values():
        if state["exp_avg_sq"].dim() == 2:
            state["exp_avg_sq"] = state["exp_avg_sq"].mean(dim=-1, keepdim=True)
    return result


torch.optim.AdamW.step = step
