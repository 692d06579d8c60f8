"""The update that a recipe's optimizer defines, from the formulas of its papers and documentation.

Each function takes what went into the step and gives the new state and the move, as values in float64 with
a bound on rounding (`checks.references.running_error`). Nothing here is taken from the optimizer object
that ran. Sources: Adam (Kingma and Ba 2015, algorithm 1); AdamW (Loshchilov and Hutter 2019, algorithm 2);
SGD with momentum and Nesterov (documentation of ``torch.optim.SGD``); Adafactor (Shazeer and Stern 2018,
algorithm 4 and 5) as ``transformers.Adafactor`` and as ``torch.optim.Adafactor`` document it, which differ
in epsilons, learning rate and precision; Muon (Jordan et al. 2024; documentation of ``torch.optim.Muon``).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from checks.references.checkpoints.formats import FORMATS, Format, rounded
from checks.references.recipe import Recipe
from checks.references.running_error import Array, Bounded
from checks.rules import SMALLEST_NORMAL


@dataclass(frozen=True)
class Given:
    """What one parameter's step starts from.

    ``before`` and ``gradient`` float64[shape]; ``state`` by key, empty in the first step; ``step`` counts
    from 1; ``weight_decay`` is this parameter's own; ``format`` is the parameter's dtype.
    """

    before: Array
    gradient: Array
    state: Mapping[str, Array]
    step: int
    learning_rate: float
    weight_decay: float
    format: Format

    def exact(self, key: str, shape: tuple[int, ...], unit: float) -> Bounded:
        """A recorded state tensor, or zeros where the step starts without one. Raises `Misfit`."""
        found = self.state.get(key, np.zeros(shape))
        if found.shape != shape:
            raise Misfit(f"its optimizer state {key} is {list(found.shape)}, not {list(shape)}")
        return Bounded.exact(found, unit)


class Misfit(Exception):
    """What was recorded is nothing that the recipe's optimizer steps; the message says why."""


@dataclass(frozen=True)
class Updated:
    """What the step has to give.

    The parameter becomes ``decayed - move``. ``decayed`` is the parameter times ``1 - learning rate *
    decay`` (the parameter itself without decoupled decay). ``arithmetic`` is the dtype that the step
    computes in. ``direction_error``: where rounding is only bounded over the whole tensor, the largest
    ||error|| / ||move||.
    """

    decayed: Array
    move: Bounded
    state: Mapping[str, Bounded]
    arithmetic: Format
    direction_error: float | None = None


def updated(recipe: Recipe, given: Given) -> Updated:
    """One step of the recipe's optimizer for one parameter."""
    return _UPDATES[recipe.optimizer](recipe, given)


def needs_whole_tensors(optimizer: str) -> bool:
    """Whether a step of the optimizer cannot be recomputed from a sample of a tensor's elements."""
    return optimizer in ("adafactor", "torch-adafactor", "muon")


def _decayed(given: Given) -> Array:
    return given.before * (1.0 - given.learning_rate * given.weight_decay)


def _average(old: Bounded, new: Bounded, kept: float) -> Bounded:
    """``kept * old + (1 - kept) * new``."""
    return old.scaled(kept).plus(new.scaled(1.0 - kept))


def _adam(recipe: Recipe, given: Given, *, decoupled: bool) -> Updated:
    unit = given.format.roundoff
    beta1, beta2 = recipe.betas
    gradient = Bounded.exact(given.gradient, unit)
    if not decoupled and given.weight_decay:
        gradient = gradient.plus(Bounded.exact(given.before, unit).scaled(given.weight_decay))
    shape = given.before.shape
    first = _average(given.exact("exp_avg", shape, unit), gradient, beta1)
    second = _average(given.exact("exp_avg_sq", shape, unit), gradient.times(gradient), beta2)
    second = Bounded(second.value, second.error + SMALLEST_NORMAL, unit)
    correction1, correction2 = 1 - beta1**given.step, 1 - beta2**given.step
    epsilon = 1e-8 if recipe.epsilon is None else recipe.epsilon
    divisor = second.root().scaled(1 / math.sqrt(correction2)).raised(epsilon)
    move = first.over(divisor).scaled(given.learning_rate / correction1)
    decayed = _decayed(given) if decoupled else given.before
    return Updated(decayed, move, {"exp_avg": first, "exp_avg_sq": second}, given.format)


def _adamw(recipe: Recipe, given: Given) -> Updated:
    return _adam(recipe, given, decoupled=True)


def _adam_l2(recipe: Recipe, given: Given) -> Updated:
    return _adam(recipe, given, decoupled=False)


def _sgd(recipe: Recipe, given: Given) -> Updated:
    unit = given.format.roundoff
    gradient = Bounded.exact(given.gradient, unit)
    if given.weight_decay:
        gradient = gradient.plus(Bounded.exact(given.before, unit).scaled(given.weight_decay))
    momentum = recipe.momentum or 0.0
    state: dict[str, Bounded] = {}
    if momentum:
        old = given.exact("momentum_buffer", given.before.shape, unit)
        started = "momentum_buffer" in given.state
        buffer = old.scaled(momentum).plus(gradient) if started else gradient
        state["momentum_buffer"] = buffer
        gradient = gradient.plus(buffer.scaled(momentum)) if recipe.nesterov else buffer
    return Updated(given.before, gradient.scaled(given.learning_rate), state, given.format)


def _mean_square(numbers: Bounded) -> Bounded:
    return numbers.times(numbers).mean()


def _clipped(update: Bounded) -> Bounded:
    """The update divided by its root mean square where that exceeds 1 (clipping threshold d = 1)."""
    size = _mean_square(update).root().at_least(1.0)
    return update.over(Bounded(np.broadcast_to(size.value, update.value.shape), size.error, size.unit))


def _adafactor(recipe: Recipe, given: Given) -> Updated:
    """``transformers.Adafactor`` with ``scale_parameter=False, relative_step=False``, as its Trainer sets it.

    It computes in float32 whatever the parameter's dtype and rounds the parameter once at the end.
    """
    arithmetic = FORMATS["F32"] if given.format.bits < 32 else given.format
    unit = arithmetic.roundoff
    gradient = Bounded.exact(given.gradient, unit)
    square = gradient.times(gradient).raised(1e-30)
    kept = 1.0 - given.step**-0.8
    if given.before.ndim < 2:
        second = _average(given.exact("exp_avg_sq", square.value.shape, unit), square, kept)
        state, update = {"exp_avg_sq": second}, gradient.over(second.root())
    else:
        rows, columns = square.mean(-1), square.mean(-2)
        rows = _average(given.exact("exp_avg_sq_row", rows.value.shape, unit), rows, kept)
        columns = _average(given.exact("exp_avg_sq_col", columns.value.shape, unit), columns, kept)
        relative = rows.over(rows.mean(-1, keepdims=True)).root().shaped(..., slice(None), None)
        update = gradient.over(relative).over(columns.root().shaped(..., None, slice(None)))
        state = {"exp_avg_sq_row": rows, "exp_avg_sq_col": columns}
    move = _clipped(update).scaled(given.learning_rate)
    return Updated(_decayed(given), move, state, arithmetic)


def _torch_adafactor(recipe: Recipe, given: Given) -> Updated:
    """``torch.optim.Adafactor`` with its defaults: eps (dtype's epsilon, 1e-3), d = 1, beta2_decay -0.8."""
    unit = given.format.roundoff
    tiny, scale_floor = 2 * unit, 1e-3
    gradient, before = Bounded.exact(given.gradient, unit), Bounded.exact(given.before, unit)
    weight = given.step**-0.8
    square = gradient.times(gradient)
    if given.before.ndim < 2:
        second = _average(given.exact("variance", square.value.shape, unit), square, 1 - weight)
        state, estimate = {"variance": second}, second
    else:
        rows = square.mean(-1, keepdims=True).scaled(1.0).scaled(1.0)
        columns = square.mean(-2, keepdims=True).scaled(1.0).scaled(1.0)
        rows = _average(given.exact("row_var", rows.value.shape, unit), rows, 1 - weight)
        columns = _average(given.exact("col_var", columns.value.shape, unit), columns, 1 - weight)
        estimate = rows.times(columns).over(rows.mean(-2, keepdims=True).at_least(tiny))
        state = {"row_var": rows, "col_var": columns}
    update = gradient.over(estimate.at_least(tiny * tiny).root())
    size = _mean_square(before).root().at_least(scale_floor)
    rate = size.scaled(min(given.learning_rate, 1 / math.sqrt(given.step)))
    clipped = _clipped(update)
    return Updated(_decayed(given), clipped.times(rate), state, given.format)


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


def _muon(recipe: Recipe, given: Given) -> Updated:
    """``torch.optim.Muon`` with its defaults; matrices only.

    Newton-Schulz runs in bfloat16 by definition and amplifies small singular values, so no bound on single
    elements is worth anything. The floor is measured on this very matrix: the same iteration with every
    product rounded to bfloat16 against float64.
    """
    if given.before.ndim != 2:
        raise Misfit(f"the recipe's muon steps matrices, and it is {list(given.before.shape)}")
    unit = given.format.roundoff
    gradient = Bounded.exact(given.gradient, unit)
    momentum = 0.95 if recipe.momentum is None else recipe.momentum
    buffer = _average(given.exact("momentum_buffer", given.before.shape, unit), gradient, momentum)
    nesterov = recipe.nesterov is None or recipe.nesterov
    direction = _average(gradient, buffer, 1 - momentum) if nesterov else buffer
    exact = _orthogonal(direction.value, lambda numbers: numbers)
    coarse = _orthogonal(direction.value, _to_bfloat16)
    size = float(np.linalg.norm(exact))
    floor = float(np.linalg.norm(coarse - exact)) / size if size else 0.0
    rows, columns = given.before.shape
    move = exact * given.learning_rate * math.sqrt(max(1.0, rows / columns))
    bounded = Bounded(move, np.full_like(move, np.inf), unit)
    return Updated(_decayed(given), bounded, {"momentum_buffer": buffer}, given.format, floor)


def _to_bfloat16(numbers: Array) -> Array:
    return rounded(numbers, FORMATS["BF16"]).astype(np.float64)


def _orthogonal(matrix: Array, narrow: Callable[[Array], Array]) -> Array:
    """Newton-Schulz: x becomes a x + (b A + c A A) x with A = x x^T, five times, from x / ||x||."""
    a, b, c = _NEWTON_SCHULZ
    turned = matrix.shape[0] > matrix.shape[1]
    x = narrow(matrix.T if turned else matrix)
    size = narrow(np.array([np.linalg.norm(x)]))
    x = narrow(x / max(float(size[0]), 1e-7))
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = narrow(x @ x.T)
        x = narrow(a * x + narrow(b * gram + c * (gram @ gram)) @ x)
    return x.T if turned else x


_UPDATES: dict[str, Callable[[Recipe, Given], Updated]] = {
    "adamw": _adamw,
    "adam": _adam_l2,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "torch-adafactor": _torch_adafactor,
    "muon": _muon,
}
