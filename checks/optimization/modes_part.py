"""Part ``modes``: what the recipe trains is in training mode wherever its eval mode computes something else.

Loss, gradient and update of a model in eval mode agree with one another: its dropout is only left out, and
its batch norms use their running statistics. So the mode itself is recorded, of every forward pass that a
backward pass went through.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checks.optimization.case import StepCase
from checks.records.steps import Inactive, Modes
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of


@dataclass
class _Left:
    """A trained module that was in eval mode: where it was met first, and in which steps."""

    rank: int
    step: int
    modes: Modes
    about: Inactive
    steps: set[int] = field(default_factory=set)


def modes_part(case: StepCase) -> Part:
    """Trained modules in eval mode, and steps whose modes were not recorded on every rank."""
    known = {step for step in case.steps if _is_known(case, step)}
    problems = [*(_problem(one, len(case.steps)) for one in _left(case)), *_unknown(case, known)]
    coverage = Coverage(judged=len(known), total=len(case.steps), unit="steps")
    return part_of("modes", problems, coverage=coverage)


def _is_known(case: StepCase, step: int) -> bool:
    """Whether every rank tells the modes of a pass of the step that a backward pass went through."""
    lines = case.lines(step)
    return bool(lines) and all(any(batch.modes for batch in line.micro_batches) for line in lines)


def _left(case: StepCase) -> list[_Left]:
    found: dict[str, _Left] = {}
    for step in case.steps:
        for rank in case.ranks:
            line = rank.line(step)
            for batch in line.micro_batches if line else ():
                for one in batch.modes.inactive if batch.modes else ():
                    if batch.modes and one.trained and one.value > 0:
                        first = found.setdefault(one.module, _Left(rank.rank, step, batch.modes, one))
                        first.steps.add(step)
    return list(found.values())


def _problem(one: _Left, steps: int) -> Problem:
    return Problem(
        code="left-in-eval-mode",
        message="a trained module was in eval mode in training, so what it does in training mode only was"
        " left out",
        place=Place(rank=one.rank, step=one.step, tensor=one.about.module),
        expected=f"training mode ({one.about.setting} {one.about.value:g} acts)",
        found=f"eval mode in {len(one.steps)} of {steps} steps; {_from(one.modes)}",
        next_step="look for eval() without train() after it (an evaluation, a load, a train() of its own), or"
        " freeze what is not to be trained",
    )


def _from(modes: Modes) -> str:
    """Where the eval mode comes from: the whole model, or the modules at which it turns."""
    if not modes.training:
        return "the whole model is in eval mode"
    names = ", ".join(name[:200] for name in modes.turned[:3])
    more = len(modes.turned) - 3 + modes.turned_more
    return f"modes turn at {names}" + (f" and {more} more" if more > 0 else "")


def _unknown(case: StepCase, known: set[int]) -> Iterator[Problem]:
    missing = [step for step in case.steps if step not in known]
    if missing:
        yield Problem(
            code="modes-unknown",
            outcome=Outcome.NOT_EVALUATED,
            message=f"of {len(missing)} steps it was not recorded which modules were in training mode",
            place=Place(step=missing[0]),
            next_step="run the procedure again with the recorder of this version",
        )
