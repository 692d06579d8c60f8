"""Steps the schedule once for each of two ranks (as in transformers before PR 24088)."""

import torch

_step = torch.optim.lr_scheduler.LambdaLR.step
_RANKS = 2


def step(self, *args, **kwargs):
    started = getattr(self, "_plumbline_started", False)
    self._plumbline_started = True  # the constructor's own call sets the first learning rate
    for _ in range(_RANKS if started else 1):
        _step(self, *args, **kwargs)


torch.optim.lr_scheduler.LambdaLR.step = step
