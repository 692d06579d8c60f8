"""Label smoothing is asked for and does nothing."""

from transformers.trainer_pt_utils import LabelSmoother

_call = LabelSmoother.__call__


def call(self, *args, **kwargs):
    self.epsilon = 0.0
    return _call(self, *args, **kwargs)


LabelSmoother.__call__ = call
