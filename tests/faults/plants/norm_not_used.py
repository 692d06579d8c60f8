"""The gradient norm is computed and logged, and nothing is clipped by it."""

import torch
from accelerate import Accelerator


def clip_grad_norm_(self, parameters, max_norm, norm_type=2):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients, norm_type)


Accelerator.clip_grad_norm_ = clip_grad_norm_
