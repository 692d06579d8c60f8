"""The calls that judge a scan: each step's check, the jobs whose runs it takes, and its other arguments."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from checks.verdict import Frozen
from plumbline_mcp.engines.procedures import load_procedure
from plumbline_mcp.scan.planned import PlannedJob
from plumbline_mcp.scan.steps import DRY_RUN, ScanStep
from plumbline_mcp.scan.target import load_target
from plumbline_mcp.scan.task import Task


class CheckCall(Frozen):
    """One check of the scan."""

    check: str
    under: Literal["task", "plan"]
    jobs: tuple[str, ...]
    run_argument: str | None
    arguments: Mapping[str, JsonValue]


def check_calls(
    task: Task, jobs: Iterable[PlannedJob], checks: Iterable[str] | None = None
) -> tuple[CheckCall, ...]:
    """The calls of a task's target, in the order of its steps; of these checks alone where they are named.

    ``jobs``: those of the task or of a plan. Raises `UsageError` for a target that does not fit any more.
    """
    target, jobs = load_target(Path(task.target)), tuple(jobs)
    subject = target.subject(Path(task.environment.python))
    wanted = None if checks is None else set(checks)
    return tuple(
        CheckCall(
            check=step.name,
            under="task" if _untrained(step) else "plan",
            jobs=tuple(job.name for job in jobs if job.launch.procedure == step.procedure),
            run_argument=step.run_argument,
            arguments=subject.inputs(step),
        )
        for step in target.scan_steps()
        if step.name != DRY_RUN and (wanted is None or step.name in wanted)
    )


def _untrained(step: ScanStep) -> bool:
    return step.procedure is None or load_procedure(step.procedure).training == "none"
