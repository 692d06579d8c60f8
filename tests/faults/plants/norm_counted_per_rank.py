"""Counts replicated gradients once for each rank (as in ROCm TransformerEngine before PR 715)."""

import torch


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    grads = [p.grad for p in parameters if p.grad is not None]
    squares = torch.stack([g.float().square().sum() for g in grads]).sum()
    torch.distributed.all_reduce(squares)
    norm = squares.sqrt()
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(factor)
    return norm


torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
