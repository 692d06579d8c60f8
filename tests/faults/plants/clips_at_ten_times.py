"""Gradients are clipped to ten times the norm that the recipe says."""

from accelerate import Accelerator

_clip = Accelerator.clip_grad_norm_


def clip_grad_norm_(self, parameters, max_norm, norm_type=2):
    return _clip(self, parameters, 10 * max_norm, norm_type)


Accelerator.clip_grad_norm_ = clip_grad_norm_
