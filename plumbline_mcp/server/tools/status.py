"""``scan_status``: what has been judged so far, and the one next call."""

from collections.abc import Collection
from typing import Any

from pydantic import Field

import checks
from checks.check import Check
from checks.verdict import Outcome
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import View

_TRUST = (
    "No tool starts a job: the person runs `plumbline run rows` and `plumbline run export` (or onboard). "
    "Approvals do not exist in this version: every verdict says approval none. Over standard input and "
    "output the agent is the same user as this server and could change its files: records are advisory."
)


class CheckStatus(View):
    """Where one check stands."""

    check: str
    verdicts: int
    latest: str | None = Field(description="id of the newest verdict")
    outcome: Outcome | None
    system_version: str | None


class Status(View):
    """What has been done, and the one next call."""

    workspace: str
    checks: tuple[CheckStatus, ...]
    runs: int
    running: tuple[str, ...] = Field((), description="checks that run now")
    next: str
    trust: str


def add_tools(toolset: Toolset) -> None:
    """Add ``scan_status``."""

    def scan_status() -> Status:
        """Say what has been judged in this workspace and the one next call. Call it first."""
        return _status(toolset)

    toolset.add(scan_status, Status, title="Status of the scan")


def _status(toolset: Toolset) -> Status:
    workspace, known = toolset.workspace, checks.discover()
    standing = tuple(_standing(workspace, name) for name in known)
    return Status(
        workspace=str(workspace.home),
        checks=standing,
        runs=workspace.run_count(),
        running=tuple(toolset.running.names()),
        next=_next(standing, known, toolset.shown),
        trust=_TRUST,
    )


def _standing(workspace: Any, name: str) -> CheckStatus:
    newest = next(iter(workspace.verdicts(check=name, limit=1)), None)
    return CheckStatus(
        check=name,
        verdicts=workspace.verdict_count(check=name),
        latest=newest.verdict.id if newest else None,
        outcome=newest.verdict.outcome if newest else None,
        system_version=newest.verdict.system_version if newest else None,
    )


def _next(
    standing: tuple[CheckStatus, ...], known: dict[str, Check[Any, Any]], shown: Collection[str | None]
) -> str:
    """A fail is looked at first, then what was not judged yet, then what could not be judged."""
    if not any(one.verdicts for one in standing):
        return "check_list(), then the first check whose files you have"
    failed = next((one for one in standing if one.outcome is Outcome.FAIL and one.latest not in shown), None)
    if failed:
        return f'verdict_show(verdict_id="{failed.latest}")'
    missing = next((one for one in standing if one.latest is None), None)
    if missing:
        required = [n for n, field in known[missing.check].inputs.model_fields.items() if field.is_required()]
        return f"check_{missing.check}({', '.join(f'{name}=...' for name in required)})"
    undecided = next((one for one in standing if one.outcome is not Outcome.PASS), None)
    if undecided and undecided.latest not in shown:
        return f'verdict_show(verdict_id="{undecided.latest}")'
    if undecided:
        return f"mend what {undecided.latest} says, then check_{undecided.check} with the same arguments"
    return "nothing is open: report the verdicts (verdict_list; the person can run `plumbline report`)"
