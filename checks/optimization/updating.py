"""One parameter's step beside the recipe's: where the new value may lie, and what a lost update is.

The last rounding of a step, to the parameter's dtype, is followed exactly: from the range that the unrounded
result may lie in comes the range of numbers it may round to. A halved update is then visible in bfloat16 too,
wherever the whole update reaches half a unit in the last place.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checks.optimization.case import Shard, StepCase, assembled, is_sampled
from checks.optimization.group_parts import weight_decay_of
from checks.records.steps import Group
from checks.references.checkpoints.formats import FORMATS, Format, rounded
from checks.references.optimizers import Given, Misfit, Updated, needs_whole_tensors, updated
from checks.references.running_error import Array, Bounded
from checks.rules import RUNNING_ERROR_SLACK

Bools = npt.NDArray[np.bool_]
_FLOAT32 = FORMATS["F32"]


@dataclass(frozen=True)
class ParameterStep:
    """A parameter's recorded step beside the recipe's; arrays float64[n] or of the parameter's shape.

    ``low`` and ``high``: where ``after`` may lie; ``exact``: the unrounded result.
    """

    shard: Shard
    step: int
    format: Format
    before: Array
    after: Array
    exact: Array
    low: Array
    high: Array
    reference: Updated
    state_before: dict[str, tuple[Array, Format]]
    state_after: dict[str, tuple[Array, Format]]

    @property
    def outside(self) -> Bools:
        """bool: elements that the recipe's step cannot have given."""
        return ~((self.after >= self.low) & (self.after <= self.high))

    @property
    def shows_half(self) -> Bools:
        """bool: elements at which half the update would be seen."""
        move = self.reference.move.value
        half = rounded(self.reference.decayed - move / 2, self.format).astype(np.float64)
        return np.asarray((move != 0) & ((half < self.low) | (half > self.high)))


class Unjudgeable(Exception):
    """A parameter's step was not recorded well enough; the message says what is missing."""


def parameter_step(
    case: StepCase, step: int, shard: Shard, groups: tuple[Group, ...]
) -> ParameterStep | None:
    """Recompute a step. None where the parameter had no gradient. Raises `Unjudgeable`."""
    name, record = shard.parameter, shard.first
    if f"grad.used.{name}" not in record.tensors:
        if f"grad.raw.{name}" in record.tensors:
            raise Unjudgeable("its gradient as the optimizer saw it was not recorded")
        return None
    if f"after.{name}" not in record.tensors:
        raise Unjudgeable("its value after the step was not recorded")
    whole = needs_whole_tensors(case.recipe.optimizer)
    if whole and is_sampled(record, f"grad.used.{name}"):
        raise Unjudgeable("only a sample of it was recorded, and its update needs all of it")
    before, gradient, after = (_values(case, step, shard, kind, whole) for kind in _KINDS)
    fmt = FORMATS[record.tensors[f"before.{name}"].dtype]
    state = _state(case, step, shard, "before", whole)
    given = Given(
        before,
        gradient,
        {key: values for key, (values, _) in state.items() if values.ndim or before.ndim == 0},
        _step_number(shard),
        case.rate(step),
        weight_decay_of(case, name, groups),
        fmt,
    )
    if not all(np.isfinite(each).all() for each in (before, gradient)):
        raise Unjudgeable("it or its gradient is not finite")
    try:
        reference = updated(case.recipe, given)
    except Misfit as misfit:
        raise Unjudgeable(str(misfit)) from misfit
    low, high = _range(given, reference)
    exact = reference.decayed - reference.move.value
    if case.recipe.stochastic_rounding:
        low, high = _around(exact, reference.move, unit_in_last_place(exact, fmt))
    elif case.recipe.kahan:
        low, high = _around(exact, reference.move, _compensation(before, exact, reference.move, fmt))
    after_state = _state(case, step, shard, "after", whole)
    return ParameterStep(shard, step, fmt, before, after, exact, low, high, reference, state, after_state)


_KINDS = ("before", "grad.used", "after")


def _values(case: StepCase, step: int, shard: Shard, kind: str, whole: bool) -> Array:
    name = f"{kind}.{shard.parameter}"
    if whole and shard.offset is not None:
        found = assembled(case, step, shard.parameter, name)
        if found is None:
            raise Unjudgeable("its parts do not make up the whole, and its update needs all of it")
        return found
    return shard.first.array(name)


def _state(
    case: StepCase, step: int, shard: Shard, when: str, whole: bool
) -> dict[str, tuple[Array, Format]]:
    """State tensors by key with their dtype; of a sharded parameter assembled where they lie as it does."""
    found = {}
    record, prefix = shard.first, f"state.{when}.{shard.parameter}."
    for key in record.state_keys(shard.parameter, when):
        fmt = FORMATS[record.tensors[prefix + key].dtype]
        if whole and shard.offset is not None and record.tensors[prefix + key].shape:
            values = (
                assembled(case, step, shard.parameter, prefix + key) if key == "momentum_buffer" else None
            )
            if values is None and when == "before":
                raise Unjudgeable("the parts of its optimizer state do not make up the whole")
            if values is None:
                continue
            found[key] = (values, fmt)
        else:
            found[key] = (record.array(prefix + key), fmt)
    return found


def _step_number(shard: Shard) -> int:
    """Which step this is by the optimizer's own count before it, else the first."""
    name = f"state.before.{shard.parameter}.step"
    if name not in shard.first.tensors:
        return 1
    value = float(shard.first.array(name).reshape(-1)[0])
    if not (math.isfinite(value) and value == int(value) and 0 <= value < 2**53):
        raise Unjudgeable(f"its step count is {value!r}")
    return int(value) + 1


def _narrowed(values: Array, arithmetic: Format, fmt: Format) -> Array:
    """Rounded to the dtype that the step computes in, then to the parameter's."""
    if arithmetic.roundoff < fmt.roundoff:
        values = rounded(values, arithmetic).astype(np.float64)
    return rounded(values, fmt).astype(np.float64)


def _range(given: Given, reference: Updated) -> tuple[Array, Array]:
    """Smallest and largest number of the parameter's dtype that the step may give."""
    low = high = reference.decayed
    if given.learning_rate * given.weight_decay and reference.decayed is not given.before:
        # The factor 1 - lr * decay is rounded to float32; the product may be rounded to the dtype or kept.
        unit = max(_FLOAT32.roundoff if given.format.bits <= 32 else 0.0, FORMATS["F64"].roundoff)
        scalar = 2 * unit * np.abs(reference.decayed)
        low, high = reference.decayed - scalar, reference.decayed + scalar
        low = np.minimum(low, rounded(low, reference.arithmetic))
        high = np.maximum(high, rounded(high, reference.arithmetic))
    slack = RUNNING_ERROR_SLACK * reference.move.error
    # The reference itself is in float64: its own rounding is as large as a float64 step's.
    slack = slack + 4 * FORMATS["F64"].roundoff * (np.abs(reference.decayed) + np.abs(reference.move.value))
    with np.errstate(invalid="ignore"):
        low, high = low - reference.move.value - slack, high - reference.move.value + slack
    return _narrowed(low, reference.arithmetic, given.format), _narrowed(
        high, reference.arithmetic, given.format
    )


def _around(exact: Array, move: Bounded, far: Array) -> tuple[Array, Array]:
    """``far`` either way, and the move's own rounding: what stochastic rounding or compensation may give."""
    far = far + RUNNING_ERROR_SLACK * move.error
    return exact - far, exact + far


def _compensation(before: Array, exact: Array, move: Bounded, fmt: Format) -> Array:
    """How far a compensated step may end from the exact one; all in units in the last place.

    Half a unit: this step's sum is rounded. One: the compensation that comes in, half from the sum before and
    half from the difference that recovered it. The move may be rounded to the weight's dtype as well. The
    unit is that of the larger weight: a step that makes a weight small brings in what a larger one lost.
    """
    unit = unit_in_last_place(np.maximum(np.abs(before), np.abs(exact)), fmt)
    return 1.5 * unit + fmt.roundoff * (np.abs(move.value) + unit)


def unit_in_last_place(values: Array, fmt: Format) -> Array:
    """Distance of neighbours in a dtype around each value."""
    _, exponent = np.frexp(values)
    place: Array = np.ldexp(2.0 * fmt.roundoff, exponent - 1)
    return place


def compensated(one: ParameterStep) -> Bools:
    """bool: elements whose update is held in full by the weight and a compensation of it together.

    Kahan 1965: what rounding takes from a weight is kept beside it, added or subtracted, and comes in later.
    Any state of the weight's shape that the optimizer itself does not define may be it; what it holds is
    rounded to its own dtype, as the steps on the way to it are to the weight's.

    It is what one addition loses: half a unit in the last place of the sum (Dekker 1971, Fast2Sum), or a
    whole one where sums are cut off. More is a compensation that is never added, or another state, such as an
    average of the weights.
    """
    most = unit_in_last_place(np.maximum(np.abs(one.before), np.abs(one.after)), one.format)
    held = np.zeros(one.before.shape, bool)
    for key, (kept, fmt) in one.state_after.items():
        was = one.state_before.get(key, (np.zeros_like(kept), fmt))[0]
        if key in one.reference.state or kept.shape != one.before.shape or was.shape != kept.shape:
            continue
        unit = max(fmt.roundoff, one.format.roundoff)
        size = np.abs(one.reference.move.value) + np.abs(kept) + np.abs(was)
        allowed = RUNNING_ERROR_SLACK * one.reference.move.error + 4 * unit * size
        for sign in (1.0, -1.0):
            moved = (one.after - one.before) + sign * (kept - was)
            held |= (np.abs(kept) <= most) & (np.abs(moved - (one.exact - one.before)) <= allowed)
    return held


def would_move(one: ParameterStep) -> Bools:
    """bool: elements that float32 arithmetic would certainly move."""
    far = np.abs(one.exact - one.before) - RUNNING_ERROR_SLACK * one.reference.move.error
    return np.asarray(far > 2 * unit_in_last_place(one.before, _FLOAT32))
