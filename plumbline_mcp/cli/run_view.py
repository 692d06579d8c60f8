"""How a run ended, on the terminal: each rank's exit and the end of its log, which is untrusted."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from checks.records.runs import Exit, RunFolder
    from plumbline_mcp.workspace import StoredRun, Workspace

_LOG_BYTES = 16_384
"""Read of the end of a log: it may be large."""
_LOG_LINES = 8


def ending(exit_: "Exit") -> str:
    """How one rank ended."""
    if exit_.clean:
        return "ended by itself"
    if exit_.timed_out:
        return "was ended at its time limit"
    if exit_.signal:
        return f"was ended by signal {exit_.signal}"
    return f"ended with exit code {'unknown' if exit_.code is None else exit_.code}"


def run_ending(workspace: "Workspace", run: "StoredRun") -> str:
    """How a whole run ended, in a few words: the first rank that did not end by itself tells."""
    from plumbline_mcp.workspace import RunOutcome, RunState

    if run.state is not RunState.SEALED:
        return f"{run.state.value}: {run.reason}" if run.reason else run.state.value
    if run.outcome in (RunOutcome.CANCELLED, RunOutcome.TIMED_OUT):
        how = run.outcome.value.replace("_", " ")
        return run.reason if run.reason.startswith(how) else f"{how}: {run.reason}"
    folder, why = open_run(workspace, run)
    exits = exits_of(folder) if folder else []
    if not exits:
        return why or "no rank left an exit record"
    broken = [exit_ for exit_ in exits if not exit_.clean]
    if not broken:
        return ending(exits[0])
    return ending(broken[0]) if len(exits) == 1 else f"rank {broken[0].rank} {ending(broken[0])}"


def open_run(workspace: "Workspace", run: "StoredRun") -> "tuple[RunFolder | None, str]":
    """The run's folder, or None and why it cannot be read."""
    from checks.errors import CheckError
    from checks.records.runs import RunFolder

    if not (workspace.runs / run.run_id).is_dir():
        return None, "its folder is gone (plumbline prune, or by hand)"
    try:
        return RunFolder.open(workspace.runs / run.run_id), ""
    except CheckError as error:
        return None, error.message


def exits_of(folder: "RunFolder") -> "list[Exit]":
    """The exit records of a run, none when one of them cannot be read."""
    from pydantic import ValidationError

    from checks.errors import CheckError

    try:
        return folder.exits()
    except (CheckError, ValidationError):
        return []


def print_ranks(out: "Console", folder: "RunFolder") -> None:
    """Each rank with how it ended, and the end of its log."""
    from plumbline_mcp.cli.screen import labelled, untrusted

    exits = exits_of(folder)
    for exit_ in exits:
        out.print(untrusted(f"rank {exit_.rank} {ending(exit_)}"))
        log = log_of(folder, exit_.rank)
        for line in _last_lines(log):
            out.print(labelled("  │ ", line, "dim"), soft_wrap=True)
        if not exit_.clean:
            out.print(labelled("  log: ", log), soft_wrap=True)
    if not exits:
        out.print("no rank left an exit record that can be read")


def log_of(folder: "RunFolder", rank: int) -> Path:
    """The log in which a rank said what was wrong; what it printed, or its launcher, when it said nothing."""
    names = (f"rank-{rank:05d}.err", f"rank-{rank:05d}.out", "launcher.err")
    logs = [folder.path / "logs" / name for name in names]
    return next((log for log in logs if _last_lines(log)), logs[0])


def _last_lines(path: Path) -> list[str]:
    """The end of a log, through a descriptor that follows no link; nothing when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return []
        file.seek(max(0, found.st_size - _LOG_BYTES))
        text = file.read(_LOG_BYTES).decode("utf-8", "replace").rstrip()
    return text.splitlines()[-_LOG_LINES:]
