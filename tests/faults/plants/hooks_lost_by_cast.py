"""Casts the wrapped model away and back: its reduction hooks are lost (as in pytorch 104336)."""

import torch

_init = torch.nn.parallel.DistributedDataParallel.__init__


def init(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    self.module.double()
    self.module.float()


torch.nn.parallel.DistributedDataParallel.__init__ = init
