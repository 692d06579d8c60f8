"""Clips each rank by the norm of its own shards (as in DeepSpeed before PR 1801)."""

import torch


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in grads]))
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(factor)
    return norm


torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
