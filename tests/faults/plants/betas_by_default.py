"""The optimizer is made with betas of its own, whatever the recipe says."""

import torch

_init = torch.optim.AdamW.__init__


def init(self, params, *args, **kwargs):
    _init(self, params, *args, **{**kwargs, "betas": (0.9, 0.95)})


torch.optim.AdamW.__init__ = init
