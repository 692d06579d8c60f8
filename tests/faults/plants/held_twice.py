"""The optimizer is given one parameter twice in a group, as a tied one under both of its names."""

import torch

_init = torch.optim.AdamW.__init__


def init(self, params, *args, **kwargs):
    groups = list(params)
    groups[0]["params"] = [*groups[0]["params"], groups[0]["params"][0]]
    _init(self, groups, *args, **kwargs)


torch.optim.AdamW.__init__ = init
