"""The supervised tokens of a step as one table: the loss of each and what it weighs in the gradient.

A logit position t predicts token t + 1, so with aligned labels its target is ``labels[t + 1]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plumbline_mcp.findings.recompute.answer import Flaw
from plumbline_mcp.findings.recompute.decoding import DTYPES, TORCH, Floats
from plumbline_mcp.findings.recompute.intervals import SUMMATION
from plumbline_mcp.findings.recompute.reading import number
from plumbline_mcp.findings.recompute.recipe import Recipe
from plumbline_mcp.findings.recompute.step_record import Full, Line, Run

IGNORED = -100
UNIT32 = 2.0**-24
EXPONENTIALS = SUMMATION * 2.0**7 * UNIT32
"""Relative rounding of a softmax's sum in float32: 8 sqrt(V / 16) units for a vocabulary V of 2^18 that a
kernel sums in 16 parts or more."""
SATURATED = 2.0**8
"""|logsumexp| that is assumed where a fused head gives none: the exponential of 89 is no float32."""
TELLS = 0.25
"""A token's weight tells something where rounding moves it by less than half of what halving it would."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one step; arrays [n]. ``weight`` is NaN where none was recorded.

    ``loss_error`` absolute, ``weight_error`` relative bound on the framework's rounding; ``apart`` what of
    the gradient is no cross-entropy's. ``stray``: (|gradient|, rank, batch, row, token) at a masked position.
    """

    step: int
    rank: np.ndarray
    batch: np.ndarray
    row: np.ndarray
    token: np.ndarray
    loss: Floats
    loss_error: Floats
    weight: Floats
    weight_error: Floats
    apart: Floats
    stray: tuple[tuple[float, int, int, int, int], ...]

    @property
    def count(self) -> int:
        """Supervised tokens of the global batch."""
        return len(self.loss)

    @property
    def tells(self) -> np.ndarray:
        """bool[n]: tokens whose weight says something."""
        return ~np.isnan(self.weight_error) & (self.weight_error <= TELLS)

    def mean(self, among: np.ndarray) -> tuple[float, float] | None:
        """(mean weight, relative bound on it) over the telling tokens among some."""
        chosen = among & self.tells
        if not chosen.any():
            return None
        return float(self.weight[chosen].mean()), spread(self.weight_error[chosen])

    def groups(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """(rank, micro-batch, bool[n]) of each micro-batch."""
        for rank, batch in sorted(set(zip(self.rank.tolist(), self.batch.tolist(), strict=True))):
            yield rank, batch, (self.rank == rank) & (self.batch == batch)


def spread(errors: Floats) -> float:
    """Bound on the mean of errors of mean zero, each within its own (Hoeffding 1963), and their mean."""
    return float(min(errors.mean(), SUMMATION * np.sqrt((errors**2).mean() / len(errors))))


def narrowest(values: list[float]) -> float:
    """Unit roundoff of the narrowest of bfloat16, float32, float64 that holds every value exactly."""
    numbers = np.array(values, np.float64)
    if not (numbers.astype(np.float32) == numbers).all():
        return 0.0
    bits = numbers.astype(np.float32).view(np.uint32)
    return 2.0**-8 if not (bits & 0xFFFF).any() else UNIT32


def supervised(full: Full, batch: int) -> np.ndarray | None:
    """bool[B, T] at the positions that predict a supervised token; None without labels."""
    name = f"micro.{batch}.labels"
    if not full.has(name):
        return None
    kept = full.file.integers(name) != IGNORED
    if full.shifted:
        return np.asarray(kept)
    moved = np.zeros_like(kept)
    moved[:, :-1] = kept[:, 1:]
    return np.asarray(moved)


def tokens_of(run: Run, recipe: Recipe, step: int) -> Tokens:
    """Every supervised token of every micro-batch whose log-probabilities were recorded."""
    parts: list[list[np.ndarray]] = []
    strays = []
    for rank, full in run.files(step):
        line = next(each for each in run.ranks if each.number == rank).lines.get(step, {"micro_batches": []})
        for batch in range(full.batches):
            told = line["micro_batches"][batch] if batch < len(line["micro_batches"]) else {}
            found = _columns(recipe, full, batch, told)
            if found is not None:
                columns, stray = found
                size = len(columns[0])
                parts.append([np.full(size, rank), np.full(size, batch), *columns])
                strays.append((stray[0], rank, batch, stray[1], stray[2]))
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)] if parts else [np.zeros(0)] * 9
    ranks, batches, row, token, loss, loss_error, weight, weight_error, apart = columns
    return Tokens(
        step, ranks, batches, row, token, loss, loss_error, weight, weight_error, apart, tuple(strays)
    )


def _columns(
    recipe: Recipe, full: Full, batch: int, told: Line
) -> tuple[list[np.ndarray], tuple[float, int, int]] | None:
    prefix, mask = f"micro.{batch}.", supervised(full, batch)
    if mask is None or not full.has(prefix + "logprob"):
        return None
    smoothing = recipe.number("label_smoothing")
    logprob = full.array(prefix + "logprob")[mask]
    seen = full.has(prefix + "logsumexp")
    scale = full.array(prefix + "logsumexp")[mask] if seen else np.full_like(logprob, SATURATED)
    loss = -logprob
    if smoothing:
        if not seen or not full.has(prefix + "logit_mean"):
            return None
        loss = (1 - smoothing) * loss + smoothing * (scale - full.array(prefix + "logit_mean")[mask])
    unit = DTYPES[TORCH.get(str(told.get("logits_dtype")), "F32")].unit
    said = [v for key in ("loss", "differentiated") if (v := number(told.get(key))) is not None]
    narrow = unit if unit > UNIT32 and (narrowest(said) if said else 2.0**-8) > UNIT32 else 0.0
    loss_error = EXPONENTIALS + (2 * UNIT32 + narrow) * (np.abs(scale) + np.abs(loss))
    weight, apart, stray = np.full_like(loss, np.nan), np.zeros_like(loss), (0.0, 0, 0)
    error = np.full_like(loss, np.nan)
    if full.has(prefix + "token_weight"):
        field = full.array(prefix + "token_weight")
        weight = field[mask]
        outside = np.where(mask, 0.0, np.abs(field))
        if outside.size:
            row, token = divmod(int(outside.argmax()), outside.shape[1])
            stray = (float(outside[row, token]), row, token)
        # d = softmax - target is at least 1 - p long; rounding moves p by EXPONENTIALS on either side.
        with np.errstate(divide="ignore"):
            room = -np.expm1(np.minimum(logprob, 0.0))
            error = unit + (2 * EXPONENTIALS + 4 * UNIT32 + narrow) / room
    if full.has(prefix + "token_residual"):
        apart = full.array(prefix + "token_residual")[mask]
    places = np.argwhere(mask)
    return [places[:, 0], places[:, 1], loss, loss_error, weight, error, apart], stray


def weight_flaws(tokens: Tokens) -> Iterator[Flaw]:
    """Every supervised token weighs the same, no other token anything, and the loss is a cross-entropy."""
    yield from _strays(tokens)
    yield from _other_losses(tokens)
    overall = tokens.mean(np.ones(tokens.count, bool))
    if overall is None:
        return
    for rank, _, among in tokens.groups():
        yield from _apart(tokens, among, overall, {"step": tokens.step, "rank": rank})
    ranks = sorted(set(tokens.rank.tolist()))
    for rank in ranks if len(ranks) > 1 else []:
        yield from _apart(tokens, tokens.rank == rank, overall, {"step": tokens.step, "rank": rank})
    for rank, _, among in tokens.groups():
        yield from _single(tokens, among, rank)


def _strays(tokens: Tokens) -> Iterator[Flaw]:
    for size, rank, _, row, token in tokens.stray:
        if not size <= 0:
            where = {"step": tokens.step, "rank": rank, "sequence": row, "token": token}
            yield Flaw("weights", "unsupervised-token-trained", where, size, 0.0)


def _other_losses(tokens: Tokens) -> Iterator[Flaw]:
    for rank, _, among in tokens.groups():
        bound = 2 * tokens.weight_error[among]
        over = np.abs(tokens.apart[among]) - np.where(np.isnan(bound), 0.0, bound)
        if over.size and not over.max() <= 0:
            worst = int(np.nan_to_num(over, nan=np.inf).argmax())
            where = {"step": tokens.step, "rank": rank}
            yield Flaw(
                "weights", "not-cross-entropy", where, float(tokens.apart[among][worst]), float(bound[worst])
            )


def _apart(
    tokens: Tokens, among: np.ndarray, overall: tuple[float, float], where: dict[str, int]
) -> Iterator[Flaw]:
    found = tokens.mean(among)
    if found is not None and not abs(found[0] - overall[0]) <= (found[1] + overall[1]) * abs(overall[0]):
        bound = found[1] + overall[1]
        yield Flaw("weights", "token-weights-differ", where, found[0] / overall[0], f"1 +- {bound:.2g}")


def _single(tokens: Tokens, among: np.ndarray, rank: int) -> Iterator[Flaw]:
    """The token of a micro-batch that is farthest from the median, beyond its own bound and the median's."""
    told = among & tokens.tells
    if not told.any():
        return
    middle = float(np.median(tokens.weight[told]))
    bound = tokens.weight_error[told] + np.quantile(tokens.weight_error[told], 0.75)
    far = np.nan_to_num(np.abs(tokens.weight[told] - middle) - bound * abs(middle), nan=np.inf)
    if far.max() > 0:
        at = np.flatnonzero(told)[int(far.argmax())]
        where = {
            "step": tokens.step,
            "rank": rank,
            "sequence": int(tokens.row[at]),
            "token": int(tokens.token[at]),
        }
        yield Flaw("weights", "token-weights-differ", where, float(tokens.weight[at]), middle)
