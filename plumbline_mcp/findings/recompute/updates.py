"""One optimizer step of one parameter in interval arithmetic: where its new value and its state may lie.

The optimizers are written from their papers and the documentation of the implementations that a recipe
names: Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), SGD with (Nesterov) momentum as torch
documents it, Adafactor (Shazeer and Stern 2018) of transformers and of torch, Muon (Jordan 2024) of torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plumbline_mcp.findings.recompute.decoding import DTYPES, Floats, round_to
from plumbline_mcp.findings.recompute.intervals import Interval
from plumbline_mcp.findings.recompute.reading import Cannot
from plumbline_mcp.findings.recompute.recipe import Recipe

TINY = 2.0**-126
"""The smallest normal float32: hardware may flush what is smaller, such as squares, to zero."""


@dataclass(frozen=True)
class Start:
    """What a step starts from: float64 arrays of one shape, the state by key, the step's number from 1.

    ``exact``: operations round nothing, so that intervals are points.
    """

    before: Floats
    gradient: Floats
    state: dict[str, Floats]
    number: int
    rate: float
    decay: float
    dtype: str
    exact: bool = False

    def unit(self, dtype: str | None = None) -> float:
        """The unit roundoff of an operation, in the parameter's dtype or in another."""
        return 0.0 if self.exact else DTYPES[dtype or self.dtype].unit

    def kept(self, key: str, shape: tuple[int, ...], unit: float) -> Interval:
        """A state tensor, zeros where there is none yet. Raises `Cannot` where its shape is another."""
        found = self.state.get(key)
        if found is not None and found.shape != shape:
            raise Cannot(f"the optimizer state {key} is {list(found.shape)}, not {list(shape)}")
        return Interval.of(np.zeros(shape) if found is None else found, unit)


@dataclass(frozen=True)
class Result:
    """``after = base - move``, each result rounded to ``dtype`` and then to the parameter's.

    ``floor``: of an update that is bounded over the whole matrix only, ||rounding|| / ||move||.
    """

    base: Floats
    move: Interval
    state: dict[str, Interval]
    dtype: str
    floor: float | None = None
    decayed: bool = False


def stepped(recipe: Recipe, start: Start) -> Result:
    """One step of the recipe's optimizer. Raises `Cannot` for one that is not known here."""
    step = _STEPS.get(recipe.optimizer)
    if step is None:
        raise Cannot(f"the optimizer {recipe.optimizer[:60]!r} is not written here")
    return step(recipe, start)


def takes_whole(recipe: Recipe) -> bool:
    """Whether an element's update depends on the other elements of its tensor."""
    return recipe.optimizer in ("adafactor", "torch-adafactor", "muon")


def _shrunk(start: Start) -> tuple[Floats, bool]:
    """Decoupled decay: p (1 - lr wd), and whether it changes anything."""
    return start.before * (1.0 - start.rate * start.decay), start.rate * start.decay != 0


def _mixed(old: Interval, new: Interval, kept: float) -> Interval:
    """An exponential moving average."""
    return old.times(kept) + new.times(1.0 - kept)


def _coupled(start: Start, unit: float) -> Interval:
    """The gradient with L2 decay added."""
    gradient = Interval.of(start.gradient, unit)
    return gradient + Interval.of(start.before, unit).times(start.decay) if start.decay else gradient


def _adam(recipe: Recipe, start: Start, *, decoupled: bool) -> Result:
    unit = start.unit()
    one, two = recipe.betas
    gradient = Interval.of(start.gradient, unit) if decoupled else _coupled(start, unit)
    shape = start.before.shape
    first = _mixed(start.kept("exp_avg", shape, unit), gradient, one)
    second = _mixed(start.kept("exp_avg_sq", shape, unit), gradient.squared(), two).widened(
        0.0, 0.0 if start.exact else TINY
    )
    bias_one, bias_two = 1 - one**start.number, 1 - two**start.number
    below = second.clamped(0.0).root().times(1 / math.sqrt(bias_two)).raised(recipe.epsilon)
    move = first.over(below.clamped(0.0)).times(start.rate / bias_one)
    base, shrunk = _shrunk(start) if decoupled else (start.before, False)
    return Result(base, move, {"exp_avg": first, "exp_avg_sq": second}, start.dtype, decayed=shrunk)


def _sgd(recipe: Recipe, start: Start) -> Result:
    unit = start.unit()
    gradient, momentum = _coupled(start, unit), recipe.number("momentum")
    state: dict[str, Interval] = {}
    if momentum:
        old = start.kept("momentum_buffer", start.before.shape, unit)
        buffer = old.times(momentum) + gradient if "momentum_buffer" in start.state else gradient
        state["momentum_buffer"] = buffer
        gradient = gradient + buffer.times(momentum) if recipe.flag("nesterov") else buffer
    return Result(start.before, gradient.times(start.rate), state, start.dtype)


def _within_one(update: Interval) -> Interval:
    """Divided by its root mean square where that is above 1."""
    size = update.squared().mean().root().clamped(1.0)
    shape = update.low.shape
    return update.over(
        Interval(np.broadcast_to(size.low, shape), np.broadcast_to(size.high, shape), size.unit)
    )


def _adafactor(recipe: Recipe, start: Start) -> Result:
    """transformers' own with scale_parameter and relative_step off: it computes in float32."""
    dtype = "F32" if DTYPES[start.dtype].bits < 32 else start.dtype
    unit = start.unit(dtype)
    gradient = Interval.of(start.gradient, unit)
    square = gradient.squared().raised(1e-30)
    kept = 1.0 - start.number**-0.8
    if start.before.ndim < 2:
        second = _mixed(start.kept("exp_avg_sq", square.low.shape, unit), square, kept)
        state, update = {"exp_avg_sq": second}, gradient.over(second.root())
    else:
        row, column = square.mean(-1), square.mean(-2)
        row = _mixed(start.kept("exp_avg_sq_row", row.low.shape, unit), row, kept)
        column = _mixed(start.kept("exp_avg_sq_col", column.low.shape, unit), column, kept)
        share = row.over(row.mean(-1, keepdims=True)).root()
        update = gradient.over(share.at(..., slice(None), None))
        update = update.over(column.root().at(..., None, slice(None)))
        state = {"exp_avg_sq_row": row, "exp_avg_sq_col": column}
    base, shrunk = _shrunk(start)
    return Result(base, _within_one(update).times(start.rate), state, dtype, decayed=shrunk)


def _torch_adafactor(recipe: Recipe, start: Start) -> Result:
    """torch.optim.Adafactor with its defaults: eps (the dtype's epsilon, 1e-3), d 1, beta2_decay -0.8."""
    unit, epsilon = start.unit(), 2 * DTYPES[start.dtype].unit
    tiny = epsilon**2
    gradient = Interval.of(start.gradient, unit)
    square, kept = gradient.squared(), 1 - start.number**-0.8
    if start.before.ndim < 2:
        second = _mixed(start.kept("variance", square.low.shape, unit), square, kept)
        state, estimate = {"variance": second}, second
    else:
        row = square.mean(-1, keepdims=True).widened(8 * unit)  # a norm, squared and divided by the count
        column = square.mean(-2, keepdims=True).widened(8 * unit)
        row = _mixed(start.kept("row_var", row.low.shape, unit), row, kept)
        column = _mixed(start.kept("col_var", column.low.shape, unit), column, kept)
        estimate = (row * column).over(row.mean(-2, keepdims=True).clamped(epsilon))
        state = {"row_var": row, "col_var": column}
    update = gradient.over(estimate.clamped(tiny).root())
    size = Interval.of(start.before, unit).squared().mean().root().clamped(1e-3)
    rate = size.times(min(start.rate, 1 / math.sqrt(start.number)))
    base, shrunk = _shrunk(start)
    return Result(base, _within_one(update) * rate, state, start.dtype, decayed=shrunk)


_POLYNOMIAL = (3.4445, -4.7750, 2.0315)


def _muon(recipe: Recipe, start: Start) -> Result:
    """torch.optim.Muon with its defaults; its floor is measured on the matrix itself.

    The Newton-Schulz iteration runs in bfloat16 and amplifies small singular values, so no interval of
    single elements is worth anything: the same iteration in bfloat16 and in float64 tells its rounding.
    """
    if start.before.ndim != 2:
        raise Cannot(f"muon steps matrices, and this is {list(start.before.shape)}")
    unit, momentum = start.unit(), recipe.number("momentum", 0.95)
    gradient = Interval.of(start.gradient, unit)
    buffer = _mixed(start.kept("momentum_buffer", start.before.shape, unit), gradient, momentum)
    nesterov = recipe.settings.get("nesterov") is None or recipe.flag("nesterov")
    taken = (_mixed(gradient, buffer, 1 - momentum) if nesterov else buffer).middle
    exact, coarse = _orthogonal(taken, None), _orthogonal(taken, "BF16")
    size = float(np.linalg.norm(exact))
    floor = float(np.linalg.norm(coarse - exact)) / size if size else 0.0
    rows, columns = start.before.shape
    move = Interval.of(exact * (start.rate * math.sqrt(max(1.0, rows / columns))), unit)
    base, shrunk = _shrunk(start)
    return Result(base, move, {"momentum_buffer": buffer}, start.dtype, floor, shrunk)


def _orthogonal(matrix: Floats, dtype: str | None) -> Floats:
    """Five Newton-Schulz steps, each product rounded to a dtype where one is given."""

    def kept(numbers: Floats) -> Floats:
        return numbers if dtype is None else round_to(numbers, dtype)

    a, b, c = _POLYNOMIAL
    x = kept(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T)
    length = float(kept(np.array([np.linalg.norm(x)]))[0])
    x = kept(x / max(length, 1e-7))
    for _ in range(5):
        gram = kept(x @ x.T)
        poly = kept(b * gram + c * (gram @ gram))
        x = kept(a * x + poly @ x)
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


_STEPS: dict[str, Callable[[Recipe, Start], Result]] = {
    "adamw": lambda recipe, start: _adam(recipe, start, decoupled=True),
    "adam": lambda recipe, start: _adam(recipe, start, decoupled=False),
    "sgd": _sgd,
    "adafactor": _adafactor,
    "torch-adafactor": _torch_adafactor,
    "muon": _muon,
}
