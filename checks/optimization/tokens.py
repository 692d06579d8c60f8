"""The supervised tokens of a step: which they are, their losses and the weight that training gave each.

A logit position t predicts token t + 1, so with ``aligned`` labels its target is ``labels[t + 1]``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from checks.optimization.case import StepCase
from checks.records.rows import IGNORED
from checks.records.steps import StepTensors
from checks.references.checkpoints.formats import FORMATS
from checks.rules import (
    LARGEST_LOGSUMEXP,
    LOGIT_ROUNDING,
    MAX_TOKEN_WEIGHT_ERROR,
    SUMMATION_DEVIATIONS,
)

_FLOAT32 = 2.0**-24
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


@dataclass(frozen=True)
class TokenBatch:
    """The supervised tokens of one micro-batch of one rank; float64[n] each.

    ``losses`` are the recipe's (smoothed) cross-entropies; ``errors`` bound the rounding in the framework's
    own loss of each; ``weights`` dL/d(loss of the token); ``weight_errors`` relative bounds on them
    (infinite where a token is predicted too well to tell); ``residuals`` what of the gradient is no
    cross-entropy's; ``places`` int[n, 2]: row and position of each. ``outside``: the largest |gradient| at
    a position that is not supervised, and its row and position.
    """

    rank: int
    number: int
    losses: np.ndarray
    errors: np.ndarray
    weights: np.ndarray | None
    weight_errors: np.ndarray
    residuals: np.ndarray | None
    places: np.ndarray
    outside: tuple[float, int, int]
    unit: float

    @property
    def count(self) -> int:
        """Supervised tokens."""
        return len(self.losses)

    @property
    def told_errors(self) -> np.ndarray:
        """The bounds of the tokens that can tell their weight."""
        told = self.weight_errors <= MAX_TOKEN_WEIGHT_ERROR
        return self.weight_errors[told] if self.weights is not None else self.weight_errors[:0]

    def mean_weight(self) -> tuple[float, float, int] | None:
        """(mean weight, relative bound on its error, tokens) over the tokens that can tell."""
        if self.weights is None:
            return None
        told = self.weight_errors <= MAX_TOKEN_WEIGHT_ERROR
        if not told.any():
            return None
        return float(self.weights[told].mean()), mean_error(self.told_errors), int(told.sum())


def mean_error(errors: np.ndarray) -> float:
    """Bound on the mean of independent errors of mean zero, each within its own bound.

    Hoeffding 1963: SUMMATION_DEVIATIONS * rms / sqrt(n); never more than the mean of the bounds.
    """
    spread = SUMMATION_DEVIATIONS * np.sqrt((errors**2).mean() / len(errors))
    return float(min(errors.mean(), spread))


def precision_of(values: Iterable[float]) -> float:
    """Relative half distance between neighbours in the narrowest dtype that holds every value exactly."""
    numbers = np.array(list(values), np.float64)
    single = numbers.astype(np.float32)
    if not (single == numbers).all():
        return 0.0
    narrow = (single.view(np.uint32) & np.uint32(0xFFFF)) == 0
    return 2.0**-8 if narrow.all() else _FLOAT32


def supervised_mask(record: StepTensors, number: int) -> np.ndarray | None:
    """bool[B, T] over logit positions; None where the labels were not recorded."""
    name = f"micro.{number}.labels"
    if name not in record.tensors:
        return None
    labels = record.array(name)
    if record.shifted:
        return np.asarray(labels != IGNORED)
    mask = np.zeros(labels.shape, bool)
    mask[..., :-1] = labels[..., 1:] != IGNORED
    return mask


def token_batches(case: StepCase, step: int) -> Iterator[TokenBatch]:
    """Every micro-batch of a full step whose tokens were recorded."""
    for rank, record in case.tensors(step):
        line = next(each for each in case.ranks if each.rank == rank).line(step)
        for number in range(record.micro_batches()):
            described = line.micro_batches[number] if line and number < len(line.micro_batches) else None
            dtype = (described.logits_dtype if described else None) or "float32"
            losses = [described.loss, described.differentiated] if described else []
            narrow = precision_of(value for value in losses if value is not None) > _FLOAT32
            units = FORMATS[_DTYPES.get(dtype, "F32")].roundoff, narrow
            batch = _batch(case.recipe.label_smoothing, rank, record, number, units)
            if batch is not None:
                yield batch


def _batch(
    smoothing: float, rank: int, record: StepTensors, number: int, units: tuple[float, bool]
) -> TokenBatch | None:
    """``units``: unit roundoff of the logits, and whether the loss was computed in their narrow dtype."""
    prefix = f"micro.{number}."
    mask = supervised_mask(record, number)
    if mask is None or prefix + "logprob" not in record.tensors:
        return None
    logprob = record.array(prefix + "logprob")[mask]
    losses, normalizer = -logprob, np.full_like(logprob, LARGEST_LOGSUMEXP)
    if prefix + "logsumexp" in record.tensors:  # a fused head gives none
        normalizer = record.array(prefix + "logsumexp")[mask]
    if smoothing:
        if any(prefix + name not in record.tensors for name in ("logsumexp", "logit_mean")):
            return None
        uniform = normalizer - record.array(prefix + "logit_mean")[mask]
        losses = (1 - smoothing) * losses + smoothing * uniform
    unit = units[0]
    narrow = unit if units[1] and unit > _FLOAT32 else 0.0
    # log(sum exp): the sum's relative error is the logarithm's absolute one; then one rounding of each term.
    errors = LOGIT_ROUNDING + (2 * _FLOAT32 + narrow) * (np.abs(normalizer) + np.abs(losses))
    weights = residuals = None
    outside = (0.0, 0, 0)
    if prefix + "token_weight" in record.tensors:
        field = record.array(prefix + "token_weight")
        weights = field[mask]
        beside = np.where(mask, 0.0, np.abs(field))
        if beside.size:
            row, token = np.unravel_index(int(beside.argmax()), beside.shape)
            outside = (float(beside.max()), int(row), int(token))
    if prefix + "token_residual" in record.tensors:
        residuals = record.array(prefix + "token_residual")[mask]
    told = _weight_errors(logprob, unit, narrow)
    places = np.argwhere(mask)
    return TokenBatch(rank, number, losses, errors, weights, told, residuals, places, outside, unit)


def _weight_errors(logprob: np.ndarray, unit: float, narrow: float) -> np.ndarray:
    """Relative bound on a token's weight <g, d> / <d, d> with d = p - q.

    Rounding moves p by at most LOGIT_ROUNDING and two units of float32, relative, in the framework's g and
    in the recorder's d; where the loss itself was computed in a narrow dtype, log p is rounded to it and p
    with it: by p (|log p| + 1) <= 1 unit. |d| >= 1 - p(target). g is rounded once more, to the logits'
    dtype.
    """
    moved = 2 * LOGIT_ROUNDING + 4 * _FLOAT32 + narrow
    away = -np.expm1(np.minimum(logprob, 0.0))
    with np.errstate(divide="ignore"):
        return np.asarray(unit + moved / away)
