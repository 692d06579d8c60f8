"""A fix: signed jobs, once more, with content that a confirmed finding led to.

Whoever changes a target, a pack, an environment or a release after it was signed changes what the checks
validate. A task or plan refuses that; a fix asks for it. It names the finding, every thing that changes by
digest or value with the text of it as a diff, and the checks that judge something else from then on. How
they judge is in no job's content, so no fix can change it.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from approvals.errors import Refused
from approvals.statement import Action
from approvals.ticket import Ticket
from approvals.used import hold_used
from plumbline_mcp.engines.job_digest import BINARY, ENVIRONMENT, IMAGE, LIBRARY, SITE, TEXT
from plumbline_mcp.engines.launching import prepare
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.states import HOW, State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.scan.fix_diff import Text, as_text, hook_texts, unified
from plumbline_mcp.scan.plan import Change, Fix, PlanCost, jobs_of, refuse_undecided
from plumbline_mcp.scan.planned import ATTEMPTS, PlannedJob, Rendered
from plumbline_mcp.scan.steps import DRY_RUN
from plumbline_mcp.scan.task import Aimed, Drafter, Task, environment_of, task_of
from plumbline_mcp.workspace import Workspace

_INTERPRETER = frozenset({BINARY, LIBRARY, SITE, IMAGE, ENVIRONMENT, "interpreter"})
_OF_IMAGE = ("commit", "source", "lock")
_Pair = tuple[PlannedJob, PlannedJob]
"""A job as it was signed, and as it would be now."""


def draft_fix(
    workspace: Workspace, ticket_id: str, finding_id: str, name: str | None = None, attempts: int = ATTEMPTS
) -> Fix:
    """The jobs of a signed task or plan that a change altered, for a confirmed finding.

    ``name``: of this job alone. Raises `UsageError` (no such finding or job, one that is not signed, nothing
    changed), `BadInput`, and `Refused` for a finding whose signature does not hold.
    """
    ticket = workspace.approvals.ticket(ticket_id)
    covered = jobs_of(ticket)
    refuse_undecided(ticket)
    task_ticket = ticket if isinstance(covered, Task) else workspace.approvals.ticket(covered.task)
    task, finding = task_of(task_ticket), confirmed_finding(workspace, finding_id)
    before: Aimed = covered if isinstance(covered, Fix) else task
    drafter = Drafter(workspace, Path(task.target))
    _refuse_another(finding, task, drafter)
    signed = [covered.job(name)] if name else list(covered.jobs)
    now = drafter.renderer.jobs((one.name, one.launch.procedure, one.changed) for one in signed)
    pairs = [(old, new) for old, new in zip(signed, now.jobs, strict=True) if old.digest != new.digest]
    if not pairs:
        raise UsageError(
            f"nothing that {name or 'a job of ' + ticket.id} runs or reads is other than what was signed",
            "make the change first (target, pack, environment or release); unchanged it is a rerun",
        )
    jobs, changes = tuple(new for _, new in pairs), _changes(pairs)
    named = {job.content.digests[TEXT] for job in jobs}
    asked = Rendered(jobs=jobs, texts={name: text for name, text in now.texts.items() if name in named})
    return Fix(
        jobs=asked.jobs,
        texts=asked.texts,
        task=task_ticket.id,
        task_sha256=task_ticket.request.content_sha256,
        checks=_checks(drafter, before, jobs, {change.name for change in changes}),
        grid={},
        attempts=attempts,
        cost=PlanCost(node_millihours=asked.node_millihours, most_node_millihours=asked.most_node_millihours),
        target=str(drafter.target.path),
        target_sha256=drafter.target_sha256,
        fields=drafter.target.file.model_dump(mode="json"),
        environment=environment_of(drafter),
        of=ticket.id,
        finding=finding.id,
        finding_sha256=finding.sha256,
        said=finding.fix,
        changes=changes,
        diff=unified(_texts(workspace, ticket, before, drafter, pairs, now)),
    )


def confirmed_finding(workspace: Workspace, finding_id: str) -> Finding:
    """A finding that a reviewer confirmed, and whose signature holds. Raises `UsageError`, `Refused`."""
    stored = Findings(workspace).get(finding_id)
    if stored.state is not State.CONFIRMED or stored.ticket is None:
        step = HOW.get(stored.state, "propose a new finding").format(finding=finding_id)
        raise UsageError(f"{finding_id} is {stored.state}: a fix is for a confirmed finding", step)
    request = hold_used(workspace.approvals, stored.ticket, f"have {finding_id} confirmed again")
    if request.action is not Action.FINDING or request.subjects.get("finding") != stored.finding.sha256:
        raise Refused(f"{stored.ticket} confirms another finding than {finding_id}", "propose it again")
    return stored.finding


def hold_fix(workspace: Workspace, ticket: Ticket) -> None:
    """Of a fix: its finding is still the one that it was signed for. Raises `UsageError`, `Refused`."""
    if ticket.request.action is not Action.FIX:
        return
    fix = jobs_of(ticket)
    if isinstance(fix, Fix) and confirmed_finding(workspace, fix.finding).sha256 != fix.finding_sha256:
        raise Refused(f"{fix.finding} is not the finding that {ticket.id} is for", "ask for the fix again")


def _refuse_another(finding: Finding, task: Task, drafter: Drafter) -> None:
    """A finding, and what is fixed, are of the one framework that the task names."""
    if drafter.pack.name != task.framework:
        raise UsageError(
            f"{drafter.target.path} is of {drafter.pack.name}, and the task of {task.framework}",
            "another framework is another task: draft it",
        )
    known = {task.framework, Path(str(task.fields["framework"])).name}
    if finding.framework not in known:
        raise UsageError(
            f"{finding.id} is a cause in {finding.framework[:80]}, and the task is of {task.framework}",
            "name a finding on that framework",
        )


def _changes(pairs: Iterable[_Pair]) -> tuple[Change, ...]:
    """Each change once, with the jobs that it is in."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for old, new in pairs:
        for name, after, before in new.content.changes(old.content):
            found.setdefault((name, _told(before), _told(after)), []).append(new.name)
    return tuple(
        Change(name=name, before=before, after=after, jobs=tuple(jobs))
        for (name, before, after), jobs in found.items()
    )


def _told(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _checks(
    drafter: Drafter, before: Aimed, jobs: Iterable[PlannedJob], changed: set[str]
) -> tuple[str, ...]:
    """Checks of the scan that judge something else: of these jobs' records, or of a file that changed."""
    procedures = {job.launch.procedure for job in jobs}
    given = {"python"} if changed & _INTERPRETER else set()
    fields = drafter.target.file.model_dump(mode="json")
    image = any(fields[key] != before.fields.get(key) for key in _OF_IMAGE)
    return tuple(
        step.name
        for step in drafter.target.scan_steps()
        if step.name != DRY_RUN
        and (
            step.procedure in procedures
            or set(step.arguments.values()) & (changed | given)
            or (image and step.name == "image")
        )
    )


def _texts(
    workspace: Workspace,
    ticket: Ticket,
    before: Aimed,
    drafter: Drafter,
    pairs: Iterable[_Pair],
    now: Rendered,
) -> Iterator[Text]:
    """What is text of the change: the target's keys, the jobs' scripts, and the files that run in a job."""
    signed = jobs_of(ticket).texts
    fields = drafter.target.file.model_dump(mode="json")
    yield Path(before.target).name, as_text(before.fields), as_text(fields)
    for old, new in pairs:
        yield f"job {new.name}", signed[old.content.digests[TEXT]], now.texts[new.content.digests[TEXT]]
        yield from hook_texts(workspace, ticket, old, prepare(new.launch, "unnamed", built=drafter.built))
