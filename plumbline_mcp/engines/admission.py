"""Lets a job run under an approval: its content is one that was signed, and its task's node-hours suffice.

Everything here happens inside the write transaction that stores the submission: of any number of calls at
once, one consumes the attempt, and an attempt that was consumed has its row.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from approvals.canonical import digest
from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.statement import Action
from approvals.ticket import Ticket
from checks.errors import CheckError
from checks.records.runs import INPUTS, Ending, Job, read_json
from plumbline_mcp.engines.contents import Contents
from plumbline_mcp.engines.engine import Approved, now
from plumbline_mcp.engines.environments import is_environment
from plumbline_mcp.engines.job_digest import ENVIRONMENT, HOOKS, TEXT, JobContent, installed, job_content
from plumbline_mcp.engines.launching import Prepared
from plumbline_mcp.workspace import RunState, StoredRun, Workspace

NOTED = "environment_noted"
NODES = 1
"""Nodes of a job of the local engine: all its ranks run on this machine."""
_MILLIHOUR_S = 3.6


class Admission:
    """What one submission under an approval goes through."""

    def __init__(self, workspace: Workspace, approved: Approved, prepared: Prepared) -> None:
        """Digests what would run. Raises `UsageError` for a file that cannot be read."""
        self._workspace, self._approved = workspace, approved
        self._content = job_content(prepared, Contents(workspace.home))
        self._cap_s = 0.0
        python = Path(self._content.interpreter)
        self._installed = installed(python, Contents(workspace.home)) if is_environment(python) else ""

    @property
    def key(self) -> str:
        """The key of the submission."""
        return self._approved.key(self._content.digest)

    def admit(self) -> None:
        """Consume the attempt, inside the write transaction that stores the submission.

        Raises `Refused`: not approved, altered, expired, used, or more than the task's node-hours leave.
        """
        approvals, digests = self._workspace.approvals, self._content.digests
        ticket = approvals.ticket(self._approved.ticket)
        measured = {name: value for name, value in digests.items() if name in ticket.request.subjects}
        note_environment(self._workspace, digests.get(ENVIRONMENT, ""), self._installed)
        approvals.consume(ticket.id, self._content.digest, self._approved.attempt, measured)
        left = node_millihours_left(self._workspace, ticket)
        if left <= 0 or self._approved.node_millihours > left:
            raise Refused(
                f"the job takes about {hours(self._approved.node_millihours)} node-hours; its task leaves"
                f" {hours(max(left, 0))} of {hours(task_of(approvals, ticket).request.node_millihours)}",
                "wait for the jobs that run, or ask for a task with a higher cap",
            )
        seconds = left * _MILLIHOUR_S / NODES
        self._cap_s = seconds if seconds < self._content.time_limit_s else 0.0

    def stamped(self, job: Job) -> Job:
        """The job with its approval, and with what the task's node-hours leave it."""
        return job.model_copy(update={"approval": self._approved.ticket, "cap_s": self._cap_s})

    def written(self, job: Job, run: Path) -> Job:
        """The job of a run folder that was just written, with the digests of its inputs in ``job.json``.

        Raises `Refused` when a hook changed since it was digested.
        """
        hooks = {name: found for name, found in job.digests.items() if name.startswith("hooks/")}
        if digest(hooks) != self._content.digests[HOOKS]:
            raise Refused("the pack or a hook changed while the job was started", "start it again")
        inputs = {f"{INPUTS}{name}": found for name, found in self._content.of_inputs.items()}
        job = job.model_copy(update={"digests": job.digests | inputs})
        (run / "job.json").write_text(job.model_dump_json(indent=1), encoding="utf-8")
        return job


def note_environment(workspace: Workspace, environment: str, found: str) -> None:
    """Note in the audit log what is installed in an environment of ours, the first time it is used here.

    Call it inside a write transaction. Raises `Refused` when it is no longer what was noted.
    """
    if not environment:
        return
    log = workspace.audit.matching("subject", environment)
    noted = next((str(entry.detail["installed"]) for entry in log if entry.event == NOTED), None)
    if noted is None:
        workspace.audit.append(NOTED, environment, {"installed": found})
    elif noted != found:
        raise Refused(
            f"the environment was changed since it was first used here: {found[:12]}…, then {noted[:12]}…",
            "remove it from the cache of environments and have it built again",
        )


def node_millihours_left(workspace: Workspace, ticket: Ticket) -> int:
    """What the task of a ticket still allows: its cap less what its jobs took and what those that run may
    take at most.
    """
    task = task_of(workspace.approvals, ticket)
    sql = """select * from runs where json_extract(job, '$.approval') in
        (select id from requests where id = :task or json_extract(request, '$.under') = :task)"""
    runs = (StoredRun.of(row) for row in workspace.query(sql, {"task": task.id}))
    return task.request.node_millihours - sum(_used(workspace, run) for run in runs)


def hours(node_millihours: int) -> str:
    """Node-hours as they are shown."""
    return f"{node_millihours / 1000:g}"


def run_seconds(workspace: Workspace, run: StoredRun) -> float:
    """How long a run that is over ran: as its supervisor saw it, else from its submission to its end."""
    path = workspace.runs / run.run_id / "exit" / "job.json"
    started, ended = run.created, run.ended or now()
    if run.state is RunState.SEALED and path.is_file():
        try:
            ending = Ending.model_validate(read_json(path))
            started, ended = ending.started or started, ending.ended or ended
        except (CheckError, ValueError):
            pass  # the row's own times are the longer ones
    return max((datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds(), 0.0)


def millihours(seconds: Iterable[float]) -> int:
    """Thousandths of a node-hour, rounded up."""
    return math.ceil(NODES * sum(seconds) / _MILLIHOUR_S)


def task_of(approvals: Approvals, ticket: Ticket) -> Ticket:
    """The task that a ticket comes under: itself, where it is one."""
    return ticket if ticket.request.action is Action.TASK else approvals.ticket(ticket.request.under)


def _used(workspace: Workspace, run: StoredRun) -> int:
    if run.state.over:
        return millihours([run_seconds(workspace, run)])
    return millihours([min(run.job.time_limit_s, run.job.cap_s or math.inf)])


def altered(signed: JobContent, found: JobContent, ticket: str, text: str, signed_text: str) -> Refused:
    """Says what of a job is not what was signed."""
    differences = [one.replace(", there ", f", in {ticket} ") for one in found.differences(signed)]
    if found.digests[TEXT] != signed.digests[TEXT]:
        differences += _first_difference(text, signed_text)
    return Refused(
        f"the job is not what {ticket} was asked for: {'; '.join(differences)[:600]}",
        "restore what was approved, or draft it again and have that signed",
    )


def _first_difference(text: str, signed: str) -> list[str]:
    lines = zip(text.splitlines(), signed.splitlines(), strict=False)
    return next(
        ([f"line {mine.strip()!r}, signed {its.strip()!r}"] for mine, its in lines if mine != its), []
    )
