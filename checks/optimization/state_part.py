"""Part ``state``: what the optimizer keeps of each parameter is what the recipe's optimizer would keep."""

import math
from collections.abc import Iterator

import numpy as np

from checks.optimization.updating import ParameterStep
from checks.rules import RUNNING_ERROR_SLACK, SMALLEST_NORMAL
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of


def state_problems(one: ParameterStep) -> Iterator[Problem]:
    """Each state tensor after the step, element by element."""
    for key, wanted in one.reference.state.items():
        if key not in one.state_after:
            if one.shard.offset is None or key == "momentum_buffer":
                yield _state_problem(
                    one, key, "state-missing", "the step left no such optimizer state", "", ""
                )
            continue
        found, fmt = one.state_after[key]
        allowed = RUNNING_ERROR_SLACK * wanted.error + fmt.roundoff * np.abs(wanted.value) + SMALLEST_NORMAL
        if found.shape != wanted.value.shape:
            shapes = (str(wanted.value.shape), str(found.shape))
            yield _state_problem(
                one, key, "state-shape-differs", "optimizer state has another shape", *shapes
            )
            continue
        excess = np.abs(found - wanted.value) - allowed
        if not (excess <= 0).all():
            worst = int(np.nan_to_num(excess, nan=math.inf).argmax())
            yield _state_problem(
                one,
                key,
                "state-differs",
                "optimizer state is not what the recipe's optimizer would hold",
                f"{wanted.value.flat[worst]:.6g} ± {allowed.flat[worst]:.2g} at element {worst}",
                f"{found.flat[worst]:.6g}",
            )


def step_count_problems(one: ParameterStep) -> Iterator[Problem]:
    """The optimizer's own step count goes up by one."""
    name = f"state.before.{one.shard.parameter}.step"
    after = one.state_after.get("step")
    before = float(one.shard.first.array(name).reshape(-1)[0]) if name in one.shard.first.tensors else 0.0
    if after is not None and float(after[0].reshape(-1)[0]) != before + 1:
        found = f"{float(after[0].reshape(-1)[0]):g}"
        yield _state_problem(
            one, "step", "step-count-differs", "the step count did not go up by one", f"{before + 1:g}", found
        )


def _state_problem(one: ParameterStep, key: str, code: str, message: str, wanted: str, found: str) -> Problem:
    return Problem(
        code=code,
        message=f"{key}: {message}",
        place=Place(step=one.step, rank=one.shard.rank, tensor=one.shard.parameter, field=key),
        expected=wanted or None,
        found=found or None,
        next_step="compare the optimizer's class and settings with the recipe",
    )


def state_part(problems: list[Problem], judged: int) -> Part:
    """The part ``state`` from its problems and the number of state tensors that were judged."""
    if not judged and not problems:
        return Part(
            name="state",
            outcome=Outcome.PASS,
            applicable=False,
            reason="the recipe's optimizer keeps no state",
        )
    coverage = Coverage(judged=judged, total=judged, unit="state tensors")
    return part_of("state", problems, coverage=coverage)
