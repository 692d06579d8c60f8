"""Parts ``update``, ``state`` and ``lost_updates``: every parameter's step against the recipe's, element by
element.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from checks.check import Progress
from checks.optimization.between_steps import moved_between, state_between
from checks.optimization.case import Shard, StepCase, shards
from checks.optimization.gradient_parts import replicas
from checks.optimization.state_part import state_part, state_problems, step_count_problems
from checks.optimization.updating import (
    ParameterStep,
    Unjudgeable,
    compensated,
    parameter_step,
    unit_in_last_place,
    would_move,
)
from checks.rules import (
    BLIND_SHARE,
    LOST_UPDATES,
    MUON_FLOORS,
    RUNNING_ERROR_SLACK,
    SUMMATION_DEVIATIONS,
)
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of


@dataclass
class _Tally:
    """What the pass over all parameters found."""

    update: list[Problem] = field(default_factory=list)
    state: list[Problem] = field(default_factory=list)
    judged: int = 0
    total: int = 0
    states: int = 0
    moving: int = 0
    visible: int = 0
    would_move: int = 0
    stuck: int = 0
    worst: tuple[float, str] = (0.0, "")
    most_stuck: tuple[float, str] = (0.0, "")
    without: set[str] = field(default_factory=set)
    with_gradient: set[str] = field(default_factory=set)


def update_parts(case: StepCase, progress: Progress) -> list[Part]:
    """The three parts, in one pass over the parameters of every full step."""
    tally = _Tally(update=[*_unrecorded(case), *moved_between(case)], state=[*state_between(case)])
    for step in case.full_steps:
        pieces = list(shards(case, step))
        for number, shard in enumerate(pieces):
            progress(number, len(pieces), f"step {step}: {shard.parameter}")
            _judge(case, step, shard, tally)
    return [_update(case, tally), state_part(tally.state, tally.states), _lost(case, tally)]


def _unrecorded(case: StepCase) -> Iterator[Problem]:
    """Parameters that an optimizer held in a full step and whose values are not in the step's file."""
    for step in case.full_steps:
        for rank in case.ranks:
            line, tensors = rank.line(step), rank.full[step].tensors
            held = [name for group in line.groups for name in group.params] if line else []
            missing = [name for name in held if case.judged(name) and f"before.{name}" not in tensors]
            if missing:
                yield Problem(
                    code="update-unknown",
                    outcome=Outcome.NOT_EVALUATED,
                    message=f"{len(missing)} parameters that the optimizer held were not recorded",
                    place=Place(step=step, rank=rank.rank, tensor=missing[0]),
                    next_step="run the procedure train_step again",
                )


def _judge(case: StepCase, step: int, shard: Shard, tally: _Tally) -> None:
    tally.total += 1
    line = next(each for each in case.ranks if each.rank == shard.rank).line(step)
    try:
        one = parameter_step(case, step, shard, line.groups if line else ())
    except Unjudgeable as reason:
        tally.update.append(_unjudged(step, shard, str(reason)))
        return
    keys = shard.first.state_keys(shard.parameter, "after")
    after = [f"state.after.{shard.parameter}.{key}" for key in keys]
    tally.update += replicas(shard, step, (f"after.{shard.parameter}",), "value")
    tally.state += replicas(shard, step, tuple(after), "optimizer state")
    tally.judged += 1
    if one is None:
        tally.without.add(shard.parameter)
        tally.update += _without_gradient(step, shard)
        return
    tally.with_gradient.add(shard.parameter)
    tally.update += _compare(case, one, tally)
    tally.state += [*state_problems(one), *step_count_problems(one)]
    tally.states += len(one.reference.state.keys() & one.state_after.keys())
    _count_lost(case, one, tally)


def _unjudged(step: int, shard: Shard, reason: str) -> Problem:
    return Problem(
        code="update-unknown",
        outcome=Outcome.NOT_EVALUATED,
        message=f"a parameter's update was not judged: {reason}",
        place=Place(step=step, rank=shard.rank, tensor=shard.parameter),
        next_step="record the step in full with sample_elements 0",
    )


def _without_gradient(step: int, shard: Shard) -> Iterator[Problem]:
    names = [f"{when}.{shard.parameter}" for when in ("before", "after")]
    if all(name in shard.first.tensors for name in names):
        before, after = (shard.first.tensors[name].digest() for name in names)
        if before != after:
            yield Problem(
                code="moved-without-gradient",
                message="a parameter without a gradient was changed by the step",
                place=Place(step=step, rank=shard.rank, tensor=shard.parameter),
            )


def _compare(case: StepCase, one: ParameterStep, tally: _Tally) -> Iterator[Problem]:
    move = one.reference.move.value
    tally.moving += int(np.count_nonzero(move))
    if one.reference.direction_error is not None:
        yield from _compare_whole(one, one.reference.direction_error, tally)
        return
    tally.visible += int(np.count_nonzero(one.shows_half))
    outside = one.outside
    used = _used(one)
    if used > tally.worst[0]:
        tally.worst = (used, one.shard.parameter)
    if outside.any():
        yield _differs(one, outside)
    elif case.recipe.stochastic_rounding:
        yield from _biased(one)


def _used(one: ParameterStep) -> float:
    """Largest distance from the exact result, in units of the bound and half a unit in the last place."""
    width = np.maximum(one.high - one.exact, one.exact - one.low)
    width = width + unit_in_last_place(one.before, one.format) / 2
    far = np.abs(one.after - one.exact)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.nan_to_num(np.where(far > 0, far / width, 0.0), posinf=math.inf).max(initial=0.0))


def _moved(one: ParameterStep) -> tuple[float, float]:
    """(scale of the recorded move along the recipe's, what is beside it relative to the recipe's)."""
    move = one.reference.move.value.reshape(-1)
    recorded = (one.reference.decayed - one.after).reshape(-1)
    size = float(move @ move)
    if size == 0:
        return math.nan, math.inf
    scale = float(recorded @ move) / size
    return scale, float(np.linalg.norm(recorded - scale * move)) / math.sqrt(size)


def _differs(one: ParameterStep, outside: np.ndarray) -> Problem:
    excess = np.maximum(one.low - one.after, one.after - one.high)
    worst = int(np.nan_to_num(excess, nan=math.inf).argmax())
    count = int(outside.sum())
    scale, _ = _moved(one)
    still = bool((one.after == one.before).all())
    message = (
        "a parameter was not updated"
        if still
        else f"a parameter moved {scale:.4g} times the recipe's update, or in another direction"
    )
    return Problem(
        code="not-updated" if still else "update-differs",
        message=message,
        place=Place(step=one.step, rank=one.shard.rank, tensor=one.shard.parameter),
        expected=f"{one.low.flat[worst]:.9g} to {one.high.flat[worst]:.9g} at element {worst}",
        found=f"{one.after.flat[worst]:.9g}; {count:,} of {one.after.size:,} elements differ",
        next_step="compare the optimizer's class and settings with the recipe",
    )


def _compare_whole(one: ParameterStep, floor: float, tally: _Tally) -> Iterator[Problem]:
    """Muon: the whole matrix's move, along and beside the recipe's, against the measured floor."""
    scale, beside = _moved(one)
    if not np.any(one.reference.move.value):
        if (one.after != one.before).any():
            yield _differs(one, np.asarray(one.after != one.before))
        return
    move = np.linalg.norm(one.reference.move.value)
    place = 2 * unit_in_last_place(np.maximum(np.abs(one.before), np.abs(one.after)), one.format)
    rounding = float(np.linalg.norm(place) / move)
    along, across = floor + rounding, MUON_FLOORS * floor + rounding
    tally.visible += one.before.size if along < BLIND_SHARE else 0
    used = max(abs(scale - 1) / along, beside / across)
    if used > tally.worst[0]:
        tally.worst = (used, one.shard.parameter)
    if abs(scale - 1) > along or beside > across:
        yield Problem(
            code="not-updated" if (one.after == one.before).all() else "update-differs",
            message=f"a matrix moved {scale:.4g} times the recipe's update with {beside:.3g} of it beside",
            place=Place(step=one.step, rank=one.shard.rank, tensor=one.shard.parameter),
            expected=f"1 ± {along:.2g} times, and at most {across:.2g} beside",
            found=f"{scale:.4g} times, and {beside:.3g} beside",
            next_step="compare the optimizer's class and settings with the recipe",
        )


def _biased(one: ParameterStep) -> Iterator[Problem]:
    """Stochastic rounding goes up and down so that its mean is the exact result.

    Truncation shows along the sign of the values, rounding to nearest against the sign of the moves.
    """
    if not one.after.size:
        return
    place = unit_in_last_place(one.exact, one.format)
    off = (one.after - one.exact) / place
    signs = (np.ones_like(off), np.sign(one.exact), np.sign(one.reference.move.value))
    mean = max((float((off * sign).mean()) for sign in signs), key=abs)
    error = RUNNING_ERROR_SLACK * float((one.reference.move.error / place).mean())
    allowed = SUMMATION_DEVIATIONS / 2 / math.sqrt(one.after.size) + error
    if abs(mean) > allowed:
        yield Problem(
            code="rounding-biased",
            message="stochastic rounding is biased",
            place=Place(step=one.step, rank=one.shard.rank, tensor=one.shard.parameter),
            expected=f"a mean error of at most {allowed:.2g} units in the last place",
            found=f"{mean:.3g}",
        )


def _count_lost(case: StepCase, one: ParameterStep, tally: _Tally) -> None:
    moving = would_move(one)
    if case.recipe.stochastic_rounding or one.reference.direction_error is not None:
        return
    still = moving & (one.after == one.before) & ~one.outside
    stuck = int(np.count_nonzero(still & ~compensated(one) if case.recipe.kahan else still))
    count = int(np.count_nonzero(moving))
    tally.would_move += count
    tally.stuck += stuck
    if count and (stuck / count, "") > tally.most_stuck:
        tally.most_stuck = (stuck / count, one.shard.parameter)


def _never_reached(case: StepCase, tally: _Tally) -> Iterator[Problem]:
    """Parameters that the recipe trains and that got no gradient in any recorded step."""
    never = [
        name
        for name in sorted(tally.without - tally.with_gradient)
        if not name.startswith("unowned.") and case.recipe.trained(name) is not False
    ]
    if never and tally.with_gradient:
        yield Problem(
            code="never-reached",
            outcome=Outcome.INCONCLUSIVE,
            message=f"{len(never)} trained parameters got no gradient in any recorded step",
            place=Place(tensor=never[0]),
            expected="a gradient in one of the recorded steps",
            found="none",
            next_step="look for a detached graph (detach, no_grad, reentrant checkpointing); freeze what is"
            " never used; of an expert that no token reached, record more steps or larger batches",
        )


def _update(case: StepCase, tally: _Tally) -> Part:
    problems = [*tally.update, *_never_reached(case, tally)]
    if tally.judged and not any(problem.outcome is Outcome.FAIL for problem in problems):
        if not tally.moving:
            problems = [*problems, _blind("no recorded step has a learning rate and a gradient above 0")]
        elif not tally.visible:
            problems = [*problems, _blind("at no recorded weight would half the update be seen in its dtype")]
    coverage = Coverage(judged=tally.judged, total=tally.total, unit="parameters in recorded steps")
    share = tally.visible / tally.moving if tally.moving else 0.0
    measurements = (
        Measurement(
            name="largest distance from the exact update, in units of the bound",
            value=tally.worst[0],
            bound=1.0,
            rule="RUNNING_ERROR_SLACK",
            where=tally.worst[1] or None,
        ),
        Measurement(
            name="share of the weights with an update above 0 whose dtype would show half of it",
            value=share,
            unit="share",
        ),
    )
    return part_of("update", problems, coverage=coverage, measurements=measurements)


def _blind(why: str) -> Problem:
    return Problem(
        code="blind",
        outcome=Outcome.INCONCLUSIVE,
        message=why,
        next_step="record a step after warm-up, or judge the recipe in float32",
    )


def _lost(case: StepCase, tally: _Tally) -> Part:
    share = tally.stuck / tally.would_move if tally.would_move else 0.0
    measurement = Measurement(
        name="weights that float32 arithmetic would move and that did not move",
        value=share,
        bound=LOST_UPDATES,
        unit="share",
        rule="LOST_UPDATES",
        where=tally.most_stuck[1] or None,
    )
    coverage = Coverage(judged=tally.would_move, total=tally.would_move, unit="moving weights")
    problems, notes = list[Problem](), list[str]()
    if share > LOST_UPDATES:
        said = f"{tally.stuck:,} of {tally.would_move:,} updates were lost to rounding ({share:.1%})"
        if case.recipe.bf16_in_place:
            notes.append(f"departure: {said}; the recipe declares that it trains bfloat16 in place")
        else:
            problems.append(
                Problem(
                    code="updates-lost",
                    message=said,
                    place=Place(tensor=tally.most_stuck[1]),
                    expected=f"at most {LOST_UPDATES:.0%}",
                    found=f"{share:.1%}; {tally.most_stuck[0]:.1%} in the worst parameter",
                    next_step="look for a compensation that is not kept, or never added"
                    if case.recipe.kahan
                    else "train float32 parameters (with bfloat16 autocast), or declare bf16_in_place",
                )
            )
    if case.recipe.optimizer == "muon" or case.recipe.stochastic_rounding:
        return Part(
            name="lost_updates",
            outcome=Outcome.PASS,
            applicable=False,
            reason="the update is judged over whole tensors, or its rounding has its own rule",
        )
    return part_of(
        "lost_updates", problems, coverage=coverage, measurements=(measurement,), notes=tuple(notes)
    )
