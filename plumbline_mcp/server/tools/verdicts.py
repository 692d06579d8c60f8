"""Stored verdicts, and the version that judged."""

import json
import platform
import re
from typing import Annotated, Any

from pydantic import Field

from checks.verdict import Outcome, Problem, Verdict
from plumbline_mcp.errors import UsageError
from plumbline_mcp.server import cursors
from plumbline_mcp.server.links import verdict_links
from plumbline_mcp.server.located import known_verdict
from plumbline_mcp.server.roles import EVERYONE
from plumbline_mcp.server.toolset import Linked, Toolset
from plumbline_mcp.server.views import (
    RESULT_LIMIT,
    Page,
    VerdictView,
    View,
    line,
    size,
    summary,
    take,
    verdict_view,
)

_PAGE = 50
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,60}(\.[A-Za-z0-9_]{1,60}){1,9}")
"""Names of tensors that a call of ours may hold; any other is text of a file, and stays in its place."""
_NOT_IN_EXPORT = frozenset({"tensor-missing", "tensor-renamed", "key-missing"})


class VerdictRow(View):
    """One line of the list."""

    id: str
    check: str
    outcome: Outcome
    summary: str
    untrusted_target: str
    run_id: str | None
    created: str
    system_version: str


class VerdictList(Page):
    """Verdicts, newest first."""

    verdicts: tuple[VerdictRow, ...]


class VersionView(View):
    """What judges here. Two installs with the same ``system_version`` judge alike."""

    system_version: str
    release: str
    digest: str = Field(description="over every shipped file and the pins")
    frozen: bool
    files: int
    pins: dict[str, str] = Field(description="versions of the reference libraries")
    python: str


def add_tools(toolset: Toolset) -> None:
    """Add ``verdict_list``, ``verdict_show`` and ``version_show``."""

    def verdict_list(
        check: Annotated[str | None, Field(description="only of this check")] = None,
        outcome: Annotated[Outcome | None, Field(description="only with this outcome")] = None,
        cursor: str | None = None,
    ) -> VerdictList:
        """List stored verdicts, newest first, one line each. Next: verdict_show(verdict_id=...)."""
        return _listed(toolset, check, outcome, cursor)

    def verdict_show(
        verdict_id: Annotated[str, Field(description="e.g. data-0007")],
        part: Annotated[str | None, Field(description="only the problems of this part, e.g. labels")] = None,
        cursor: str | None = None,
    ) -> Linked:
        """Show one verdict: parts, measured values against bounds, problems with their place, reference."""
        return _shown(toolset, verdict_id, part, cursor)

    toolset.add(verdict_list, VerdictList, title="List verdicts")
    toolset.add(verdict_show, VerdictView, title="Show a verdict")
    toolset.add(version_show, VersionView, title="Show the system version", roles=EVERYONE)


def version_show() -> VersionView:
    """Show the version that judges: release, digest over every shipped file, reference libraries."""
    from plumbline_mcp.version import system_version

    version = system_version()
    return VersionView(
        system_version=str(version),
        release=version.release,
        digest=version.digest,
        frozen=version.frozen,
        files=len(version.files),
        pins=version.pins,
        python=platform.python_version(),
    )


def shown(verdict: Verdict, inputs: dict[str, Any]) -> Linked:
    """A verdict as a check's answer: its first problems, its link and the one next call."""
    return _page(verdict, inputs, None, 0)


def _shown(toolset: Toolset, verdict_id: str, part: str | None, cursor: str | None) -> Linked:
    stored = known_verdict(toolset, verdict_id)
    names = [known.name for known in stored.verdict.parts]
    if part is not None and part not in names:
        raise UsageError(f"{verdict_id} has no part {part!r}", f"its parts are {', '.join(names) or 'none'}")
    skip = cursors.offset(cursor, "verdict_show", {"verdict_id": verdict_id, "part": part})
    toolset.shown.add(verdict_id)
    return _page(stored.verdict, stored.inputs, part, skip)


def _page(verdict: Verdict, inputs: dict[str, Any], part: str | None, skip: int) -> Linked:
    view = verdict_view(verdict, part, skip)
    update: dict[str, Any] = {"next": next_call(verdict, inputs)}
    if view.truncated:
        arguments = {"verdict_id": verdict.id, "part": part}
        update["cursor"] = cursors.encode("verdict_show", arguments, skip + len(view.problems))
        named = ", ".join(f'{name}="{value}"' for name, value in arguments.items() if value)
        update["next"] += f"; for more problems verdict_show({named}, cursor=<cursor>), or name one part"
    return Linked(view.model_copy(update=update), verdict_links(verdict))


def next_call(verdict: Verdict, inputs: dict[str, Any]) -> str:
    """The one next call after a verdict: the raw record at its first failing place, where it has one."""
    if verdict.outcome is Outcome.PASS:
        return "scan_status()"
    problems = [problem for _, problem in verdict.problems() if problem.outcome is Outcome.FAIL]
    failing = [problem.place for problem in problems]
    sequence = next((place for place in failing if place.sequence is not None), None)
    if "rows" in inputs and sequence is not None:
        named = {name: inputs[name] for name in ("rows", "model") if inputs.get(name)}
        return _call("rows_read", named | {"first": sequence.sequence, "token": sequence.token})
    tensor = next((problem for problem in problems if problem.place.tensor), None)
    if "export" in inputs and tensor is not None:
        return _read_tensor(tensor, inputs)
    if not verdict.problems():
        return f"check_{verdict.check} again, with what next_step names"
    return f"mend the first problem, then check_{verdict.check} with the same arguments"


def _read_tensor(problem: Problem, inputs: dict[str, Any]) -> str:
    """The call that reads the tensor of a problem, from the release where the export lacks it."""
    lacks = problem.code in _NOT_IN_EXPORT and inputs.get("original")
    path, name = inputs["original" if lacks else "export"], problem.place.tensor
    if name is not None and _PLAIN_NAME.fullmatch(name):
        return _call("tensors_read", {"path": path, "tensor": name})
    return _call("tensors_read", {"path": path})[:-1] + ", tensor=<the tensor that untrusted_place names>)"


def _call(tool: str, arguments: dict[str, Any]) -> str:
    named = (f"{name}={json.dumps(value)}" for name, value in arguments.items() if value is not None)
    return line(f"{tool}({', '.join(named)})", 1000)


def _listed(toolset: Toolset, check: str | None, outcome: Outcome | None, cursor: str | None) -> VerdictList:
    arguments = {"check": check, "outcome": outcome}
    after = cursors.decode(cursor, "verdict_list", arguments)
    if check is not None:
        from plumbline_mcp.scan.service import find_check

        find_check(check)
    stored = toolset.workspace.verdicts(check=check, outcome=outcome, limit=_PAGE + 1, after=_text(after))
    head = VerdictList(verdicts=(), total=toolset.workspace.verdict_count(check=check, outcome=outcome))
    rows = take(
        (_row(one.verdict, one.inputs, one.created) for one in stored[:_PAGE]),
        RESULT_LIMIT - size(head) - 500,
    )
    more = len(rows) < len(stored)
    return head.model_copy(
        update={
            "verdicts": tuple(rows),
            "truncated": more,
            "cursor": cursors.encode("verdict_list", arguments, stored[len(rows) - 1].verdict.id)
            if more
            else None,
            "next": f'verdict_show(verdict_id="{stored[0].verdict.id}")' if stored else "scan_status()",
        }
    )


def _text(position: int | str | None) -> str | None:
    return None if position is None else str(position)


def _row(verdict: Verdict, inputs: dict[str, Any], created: str) -> VerdictRow:
    target: dict[str, Any] = inputs | verdict.target
    return VerdictRow(
        id=verdict.id,
        check=verdict.check,
        outcome=verdict.outcome,
        summary=summary(verdict),
        untrusted_target=line(", ".join(f"{name} {value}" for name, value in target.items())),
        run_id=verdict.run_id,
        created=created,
        system_version=verdict.system_version,
    )
