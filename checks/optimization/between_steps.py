"""From one recorded step to the next: what a step left is what the next one starts from.

An optimizer made anew, a state that was lost, weights that something else rounds, clamps or puts back: each
step alone is the recipe's, and only two of them side by side show it.
"""

from collections.abc import Iterator

from checks.optimization.case import StepCase
from checks.records.steps import RankSteps, StepTensors
from checks.verdict import Place, Problem


def moved_between(case: StepCase) -> Iterator[Problem]:
    """Parameters that are not what the step before left."""
    for rank, step, earlier, later in _neighbours(case):
        for name in later.parameters():
            if _differs(earlier, f"after.{name}", later, f"before.{name}"):
                yield Problem(
                    code="moved-between-steps",
                    message="a parameter was changed between two optimizer steps",
                    place=Place(step=step, rank=rank, tensor=name),
                    expected=f"the bytes that step {step - 1} left",
                    found="other bytes",
                    next_step="look for what writes weights outside the optimizer (a cast, clamp, copy)",
                )


def state_between(case: StepCase) -> Iterator[Problem]:
    """Optimizer state that is not what the step before left, or that is gone."""
    for rank, step, earlier, later in _neighbours(case):
        for name in later.parameters():
            for key in earlier.state_keys(name, "after"):
                tensor = f"state.before.{name}.{key}"
                if tensor in later.tensors and _differs(earlier, f"state.after.{name}.{key}", later, tensor):
                    yield _state_problem(rank, step, name, key, "was changed between two optimizer steps")
    for each in case.ranks:
        for step in case.full_steps:
            if _was_stepped_before(each, step):
                yield from _lost(each, step)


def _neighbours(case: StepCase) -> Iterator[tuple[int, int, StepTensors, StepTensors]]:
    """(rank, later step, record of the step before, record of the step) where both were recorded."""
    for rank in case.ranks:
        for step in case.full_steps:
            if step - 1 in rank.full and rank.line(step - 1) is not None:
                yield rank.rank, step, rank.full[step - 1], rank.full[step]


def _differs(earlier: StepTensors, old: str, later: StepTensors, new: str) -> bool:
    """Whether both were recorded of the same elements and are not the same bytes."""
    first, second = earlier.tensors.get(old), later.tensors.get(new)
    if first is None or second is None or earlier.samples.get(old) != later.samples.get(new):
        return False
    same_kind = (first.dtype, first.shape) == (second.dtype, second.shape)
    return not same_kind or first.digest() != second.digest()


def _was_stepped_before(rank: RankSteps, step: int) -> bool:
    return any(line.step < step and line.step not in rank.partly for line in rank.lines)


def _lost(rank: RankSteps, step: int) -> Iterator[Problem]:
    """Every parameter starts a later step without the state that the step itself leaves."""
    record = rank.full[step]
    stepped = [name for name in record.parameters() if f"grad.used.{name}" in record.tensors]
    keeps = [name for name in stepped if record.state_keys(name, "after")]
    if keeps and not any(record.state_keys(name, "before") for name in keeps):
        key = record.state_keys(keeps[0], "after")[0]
        yield _state_problem(
            rank.rank, step, keeps[0], key, "is gone when the step begins, of every parameter"
        )


def _state_problem(rank: int, step: int, name: str, key: str, what: str) -> Problem:
    return Problem(
        code="state-lost",
        message=f"optimizer state {what}",
        place=Place(step=step, rank=rank, tensor=name, field=key),
        expected="the state that the step before left",
        found="another state or none",
        next_step="look for an optimizer that is made anew, or whose state is cleared, cast or moved",
    )
