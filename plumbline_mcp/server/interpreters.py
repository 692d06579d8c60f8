"""Which interpreters a tool may run: those that the user named, or that Plumbline built itself.

A tool takes its arguments from an agent, and judging an environment runs that environment's interpreter. So
the agent chooses among programs that a person chose: with ``plumbline serve --python``, by judging them or
running a job with them from the command line in this workspace, or by having Plumbline build them.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from approvals.visible import visible_line
from plumbline_mcp.errors import UsageError

if TYPE_CHECKING:
    from plumbline_mcp.workspace import Workspace

ARGUMENT = "python"
"""What every check calls the interpreter that it runs."""

_LOOKED_AT = 1000
_NAMED = 5


def refuse_unnamed(workspace: "Workspace", named: Iterable[Path], arguments: dict[str, Any]) -> None:
    """Raise `UsageError` when a check's arguments name an interpreter that no person chose."""
    if arguments.get(ARGUMENT) is None:
        return
    from plumbline_mcp.engines.environments import is_built

    wanted = _place(arguments[ARGUMENT])
    if is_built(wanted):
        return
    known = {_place(path) for path in (*named, *_used(workspace))}
    if wanted not in known:
        asked = visible_line(str(arguments[ARGUMENT]))
        raise UsageError(
            f"{asked} is no interpreter that the user named: {_listed(known)}",
            "ask the user to restart the server as `plumbline serve --python PATH`, or to run "
            "`plumbline check image --python PATH --framework NAME` once in this workspace",
        )


def _place(path: str | Path) -> Path:
    """Where it lies. The file itself is not resolved: a venv's interpreter is a link, its folder is not."""
    absolute = Path(path).expanduser().absolute()
    return Path(os.path.realpath(absolute.parent)) / absolute.name


def _used(workspace: "Workspace") -> set[Path]:
    """Interpreters of stored image verdicts and of runs: each was chosen by a person at the time."""
    judged = (stored.inputs.get(ARGUMENT) for stored in workspace.verdicts(check="image", limit=_LOOKED_AT))
    started = (run.job.interpreter for run in workspace.runs_list(limit=_LOOKED_AT))
    return {Path(path) for path in (*judged, *started) if isinstance(path, str) and Path(path).is_absolute()}


def _listed(known: set[Path]) -> str:
    if not known:
        return "none was named yet"
    shown = ", ".join(visible_line(str(path)) for path in sorted(known)[:_NAMED])
    return f"named are {shown}" + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
