"""What a fused last layer says by position: it returns log-probabilities of the next tokens, and no logits.

With l the log-probability of a supervised token and a loss that is a weighted mean of -l, the gradient at l
is minus the weight of that token: ``token_weight`` = -dL/dl. A residual at the logits cannot be seen here.
"""

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.micro_batches import MicroBatch
from plumbline_recorder.reading import local, quiet


class LogProbRecord:
    """Follows the log-probabilities [B, T - 1] or [B, T] of one micro-batch."""

    def __init__(self, batch: MicroBatch, health: Health) -> None:
        """Nothing is known before the backward pass."""
        self._batch, self._health = batch, health
        self.values: "dict[str, torch.Tensor]" = {}
        self.missing = "no gradient reached the log-probabilities"

    def before_backward(self) -> None:
        """The labels are known now: take the values and follow the gradient."""
        targets, given = self._batch.targets(), self._batch.log_probs
        if targets is None or targets.shape[-1] - given.shape[-1] not in (0, 1):
            self.missing = "the labels are not known, or do not fit the log-probabilities"
            return
        with quiet():
            self.values["logprob"] = _whole(local(given).float(), targets)
        given.register_hook(self._took)

    def _took(self, gradient: "torch.Tensor") -> None:
        with self._health.guard("the gradient of the log-probabilities"), quiet():
            targets, given = self._batch.targets(), local(self._batch.log_probs)
            on = targets[..., : given.shape[-1]].to(given.device) >= 0
            weight = -local(gradient).float()
            # A position that the layer masked returns exactly 0; nothing behind the mask sees its gradient.
            off = torch.where(given == 0, 0.0, weight.abs())
            self.values["token_weight"] = _whole(torch.where(on, weight, off), targets)
            self.missing = ""


def _whole(values: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Values by logit position [B, T]: the last one has none where the layer leaves it out."""
    ends = values.new_zeros((*values.shape[:-1], targets.shape[-1] - values.shape[-1]))
    return torch.cat([values, ends], dim=-1)
