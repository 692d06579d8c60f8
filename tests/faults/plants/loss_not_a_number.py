"""The loss is 0 / 0, as a mean over no token."""

from transformers import Trainer

_compute_loss = Trainer.compute_loss


def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
    loss, outputs = _compute_loss(self, model, inputs, return_outputs=True, **kwargs)
    loss = loss * 0.0 / 0.0
    return (loss, outputs) if return_outputs else loss


Trainer.compute_loss = compute_loss
