"""The steps of a scan, in the order of the training lifecycle: what each runs, and what its check is given.

A step whose check or procedure does not exist (in this version, in this pack) is not listed.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import checks
from checks.check import Progress
from checks.references.packs import Pack
from plumbline_mcp.engines.procedures import procedures
from plumbline_mcp.errors import UsageError

DRY_RUN = "dry_run"
"""The step that judges nothing: a recipe that cannot even start ends the scan with its sentence."""

FIRST_RUN = "first_run"
"""The procedure that a task covers beside the steps: no check waits for it."""

FINISHING = "finishing"


@dataclass(frozen=True)
class ScanStep:
    """One job, where it needs one, and the check of what it left."""

    name: str
    procedure: str | None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Argument of the check to what it is given: ``python``, ``run``, or a file of the subject."""

    @property
    def run_argument(self) -> str | None:
        """The argument of the check that takes the run of its procedure."""
        return next((name for name, what in self.arguments.items() if what == "run"), None)

    @property
    def parts(self) -> int:
        """How many steps of progress it is: a job, a check, or both."""
        return 1 if self.procedure is None or self.name == DRY_RUN else 2


STEPS = (
    ScanStep("image", None, {"python": "python"}),
    ScanStep(DRY_RUN, "dry_run"),
    ScanStep(
        "data", "rows", {"model": "model", "workload": "workload", "rows": "run", "template": "template"}
    ),
    ScanStep("build", "build", {"model": "model", "run": "run"}),
    ScanStep("load", "load", {"model": "model", "run": "run"}),
    ScanStep("optimizer_step", "train_step", {"run": "run"}),
    ScanStep("export", "export", {"original": "model", "export": "run"}),
)


def step_names() -> list[str]:
    """Every step that this version can take, whatever the pack."""
    known = checks.discover()
    return [step.name for step in STEPS if step.name in known or step.name == DRY_RUN]


def steps_for(pack: Pack, wanted: Iterable[str] = ()) -> tuple[ScanStep, ...]:
    """The steps that a scan of this framework takes, or those of them that are wanted.

    Raises `UsageError` for a wanted one that does not exist or that the pack has no procedure for.
    """
    known, possible = step_names(), set(procedures()) & set(pack.about.procedures)
    steps = {
        step.name: step
        for step in STEPS
        if step.name in known and (step.procedure is None or step.procedure in possible)
    }
    chosen = list(wanted) or list(steps)
    for name in chosen:
        if name not in steps:
            near = difflib.get_close_matches(name, steps, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(steps)}"
            raise UsageError(f"a scan of {pack.name} has no step {name!r}", hint)
    return tuple(step for name, step in steps.items() if name in chosen)


class StepProgress:
    """Progress over a scan: whole steps, and the part of the present one that its own progress tells."""

    def __init__(self, total: int, report: Progress) -> None:
        self._total, self._report, self._done = total, report, 0

    def begin(self, step: str) -> Progress:
        """Start a step; its progress may be told to what is returned."""
        started, self._done = self._done, self._done + 1
        self._report(started, self._total, step)
        furthest = 0.0  # a job that counts anew for each epoch must not walk backwards

        def told(done: float, total: float | None, message: str) -> None:
            nonlocal furthest
            furthest = max(furthest, min(done / total, 1.0) if total else 0.0)
            if total and done >= total:
                message = FINISHING  # what it still does after the last thing it counts, it does not tell
            self._report(started + furthest, self._total, f"{step}: {message}" if message else step)

        return told
