"""Gradients are never zeroed (as in StackOverflow 60335387)."""

import torch


def zero_grad(self, set_to_none=True):
    return None


torch.optim.Optimizer.zero_grad = zero_grad
torch.nn.Module.zero_grad = zero_grad
