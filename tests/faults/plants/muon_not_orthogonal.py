"""Muon's update is the momentum itself: its matrices are not made orthogonal."""

import torch.optim._muon as muon


def as_it_is(gradient, *args, **kwargs):
    return gradient / gradient.norm()


muon._zeropower_via_newtonschulz = as_it_is
