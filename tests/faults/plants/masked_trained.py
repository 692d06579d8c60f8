"""Masked positions are trained to predict the token 0, as where the mask's value is no longer ignored."""

import transformers.loss.loss_utils as losses

_cross_entropy = losses.fixed_cross_entropy


def fixed_cross_entropy(source, target, *args, **kwargs):
    return _cross_entropy(source, target.clamp(min=0), *args, **kwargs)


losses.fixed_cross_entropy = fixed_cross_entropy
