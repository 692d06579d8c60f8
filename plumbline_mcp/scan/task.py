"""The task: what a reviewer signs first. It names target, commit, environment and a cap of node-hours, and
covers building the environment, the dry run, the jobs of checks that need no training, and the recipe's
first run, each job by digest.
"""

import math
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError

from approvals.errors import Refused
from approvals.statement import Action, Request
from approvals.ticket import Ticket
from checks.records.runs import sha256_file
from checks.references.packs import Pack, load_pack
from checks.verdict import Frozen
from plumbline_mcp.engines.job_digest import readable
from plumbline_mcp.engines.procedures import load_procedure, procedures
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.planned import ATTEMPTS, Rendered, Renderer, subjects
from plumbline_mcp.scan.scanning import Subject
from plumbline_mcp.scan.steps import DRY_RUN, FIRST_RUN
from plumbline_mcp.scan.target import Target, load_target, planned_python
from plumbline_mcp.workspace import Workspace

C = TypeVar("C", bound=Rendered)

BUILD = "environment"
"""The name under which a task's environment is built."""
TARGET_FILE = "target file"


class TaskEnvironment(Frozen):
    """Where the jobs run."""

    kind: Literal["python", "image", "requirements", "pack"]
    python: str = Field(description="the interpreter")
    built: bool = Field(description="whether it was there when the task was drafted")
    digest: str = Field(description="of what it is built from, or of what it is")


class Aimed(Rendered):
    """Jobs of a target as it was read, and the environment that they run in."""

    target: str = Field(description="path of the target file")
    target_sha256: str
    fields: dict[str, JsonValue] = Field(description="the target file as it was read")
    environment: TaskEnvironment

    @property
    def builds(self) -> tuple[str, ...]:
        """The digest under which its environment is built; none where that was there."""
        return () if self.environment.built else (self.environment.digest,)


class Task(Aimed):
    """The content of the request: nothing that it covers is decided later."""

    format: Literal[1] = 1
    framework: str
    commit: str = Field(description="the framework's commit or version under test, where it is named")
    cap_node_millihours: int = Field(ge=0, description="all jobs of the task and its plans take no more")
    attempts: int
    covers: tuple[str, ...]
    checks: tuple[str, ...] = Field(description="checks that need no training")


class Drafter:
    """Reads a target and renders its jobs; starts and builds nothing."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        """Raises `UsageError`, `BadInput` and `NotEvaluated` for a target that cannot be used."""
        self.workspace, self.target = workspace, load_target(path)
        self.target_sha256 = sha256_file(self.target.path.resolve())[0]
        self.python, self.built = planned_python(self.target, workspace.home / "images")
        self.subject: Subject = self.target.subject(self.python)
        self.pack: Pack = load_pack(self.target.framework)
        self.renderer = Renderer(workspace, self.subject, built=self.built)


def draft_task(
    workspace: Workspace, path: Path, node_hours: float | None = None, attempts: int = ATTEMPTS
) -> Task:
    """The task of a target file. ``node_hours`` is the cap; by default what all of the scan can take at most.

    Raises `UsageError`, `BadInput` and `NotEvaluated` for a target that cannot be used.
    """
    drafter = Drafter(workspace, path)
    target, covered = drafter.target, covered_procedures(drafter.target, drafter.pack)
    rendered = drafter.renderer.jobs((name, name, {}) for name in covered)
    later = drafter.renderer.jobs((name, name, {}) for name in planned_procedures(target))
    most = attempts * (rendered.most_node_millihours + later.most_node_millihours)
    return Task(
        jobs=rendered.jobs,
        texts=rendered.texts,
        target=str(target.path),
        target_sha256=drafter.target_sha256,
        fields=target.file.model_dump(mode="json"),
        framework=drafter.pack.name,
        commit=target.file.commit or "",
        environment=environment_of(drafter),
        cap_node_millihours=_cap(most, node_hours),
        attempts=attempts,
        covers=_covers(drafter, covered),
        checks=tuple(_untrained(target)),
    )


def request_task(
    workspace: Workspace, task: Task, requester: str, requester_uid: int | None = None
) -> Ticket:
    """Ask for a task: the ticket of it, or the open one of the same. Raises `Refused`, `UsageError`."""
    commit = f" {task.commit}" if task.commit else ""
    return ask(
        workspace,
        action=Action.TASK,
        title=f"{task.framework}{commit} on {Path(str(task.fields['model'])).name}"[:200],
        content=task.model_dump(mode="json"),
        subjects=subjects(task, {TARGET_FILE: task.target_sha256}),
        requester=requester,
        requester_uid=requester_uid,
        node_millihours=task.cap_node_millihours,
        attempts=task.attempts,
        uses=(*task.builds, *task.uses),
    )


def ask(workspace: Workspace, **values: Any) -> Ticket:
    """Put a request into the queue, in one transaction. Raises `Refused`, and `UsageError` if too large."""
    try:
        request = Request.model_validate(values)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"it cannot be asked for: {said}", "ask for fewer jobs at once") from error
    with workspace.write_tx():
        return workspace.approvals.request(request)


def covered_procedures(target: Target, pack: Pack) -> list[str]:
    """Procedures that the task covers: those without training of the scan's steps, and the first run."""
    named = [step.procedure for step in target.scan_steps() if step.procedure]
    free = [name for name in dict.fromkeys(named) if load_procedure(name).training == "none"]
    first = FIRST_RUN in pack.about.procedures and FIRST_RUN in procedures()
    return [*free, FIRST_RUN] if first else free


def planned_procedures(target: Target) -> list[str]:
    """Procedures of the scan's steps that train: a plan covers them."""
    named = [step.procedure for step in target.scan_steps() if step.procedure]
    return [name for name in dict.fromkeys(named) if load_procedure(name).training != "none"]


def task_of(ticket: Ticket) -> Task:
    """The task of a ticket. Raises `UsageError` when it is none."""
    if ticket.request.action is not Action.TASK:
        raise UsageError(
            f"{ticket.id} is a {ticket.request.action.value}, no task", "name the ticket of a task"
        )
    return content_of(ticket, Task)


def content_of(ticket: Ticket, model: type[C]) -> C:
    """The content of a ticket as a task or a plan. Raises `UsageError` for one that is none."""
    try:
        return model.model_validate(ticket.request.content)
    except ValidationError as error:
        kind, said = model.__name__.lower(), error.errors()[0]["msg"]
        raise UsageError(
            f"the content of {ticket.id} is no {kind} of this version: {said}", "draft it again"
        ) from error


def refuse_changed(ticket: Ticket, signed: Aimed) -> None:
    """Raise `Refused` when the target file is not the one that was signed, `UsageError` when it is gone."""
    found = readable(lambda: sha256_file(Path(signed.target).resolve())[0])
    if found != signed.target_sha256:
        raise Refused(
            f"{signed.target} is not the file that {ticket.id} names: now {found[:12]}…,"
            f" then {signed.target_sha256[:12]}…",
            "restore it, or draft a new task of it; where a confirmed finding asks for the change, a fix",
        )


def _untrained(target: Target) -> list[str]:
    return [
        step.name
        for step in target.scan_steps()
        if step.name != DRY_RUN
        and (step.procedure is None or load_procedure(step.procedure).training == "none")
    ]


def _covers(drafter: Drafter, covered: list[str]) -> tuple[str, ...]:
    found = [] if drafter.built else [BUILD]
    found += ["dry run"] if DRY_RUN in covered else []
    found += ["no-training checks"] if _untrained(drafter.target) else []
    return (*found, *(["first run"] if FIRST_RUN in covered else []))


def environment_of(drafter: Drafter) -> TaskEnvironment:
    """Where the jobs of a target run."""
    wanted = drafter.target.file.environment
    kinds: dict[Literal["python", "image", "requirements", "pack"], object] = {
        "python": wanted.python,
        "image": wanted.image,
        "requirements": wanted.requirements,
    }
    kind = next((name for name, given in kinds.items() if given is not None), "pack")
    return TaskEnvironment(
        kind=kind,
        python=str(drafter.python),
        built=drafter.built,
        digest=drafter.renderer.environment(),
    )


def _cap(most: int, node_hours: float | None) -> int:
    """Whole node-hours by default."""
    if node_hours is None:
        return 1000 * math.ceil(most / 1000)
    return math.ceil(1000 * node_hours)
