"""``plumbline job``: the jobs of this workspace: how they stand, their logs, and their end."""

import codecs
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.job_start import start
from plumbline_mcp.cli.options import FLAG, ExitCode, Home, Json, Quiet
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.engines.engine import Status
    from plumbline_mcp.engines.logs import LogPage
    from plumbline_mcp.workspace import Workspace

NAME = "job"

_HELP = """Jobs run under a supervisor of their own: they outlive the program that started them.

Example: plumbline job list
"""


class StreamName(StrEnum):
    """The two logs of a rank."""

    OUT = "out"
    ERR = "err"


_Id = Annotated[str, typer.Argument(metavar="ID", help="The job's run, as `plumbline job list` names it.")]
_Grace = Annotated[
    float | None,
    typer.Option(min=0, max=600, metavar="SECONDS", help="Processes have after SIGTERM; 3 by default."),
]
_Rank = Annotated[int | None, typer.Option(min=0, metavar="N", help="Whose log; without it, rank 0's.")]
_Launcher = Annotated[
    bool, typer.Option("--launcher", metavar=FLAG, help="The log of what started the ranks.")
]
_Offset = Annotated[
    int | None, typer.Option(metavar="BYTE", help="Where to begin; negative counts from the end.")
]
_Bytes = Annotated[int, typer.Option("--bytes", min=1, max=2**20, metavar="N", help="At most so many bytes.")]
_Follow = Annotated[bool, typer.Option("--follow", "-f", metavar=FLAG, help="Go on until the job is over.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Start approved jobs; show, follow and end jobs.",
        (
            ("start", start, "Start a job of a signed task or plan."),
            ("list", list_, "List jobs and how they stand."),
            ("status", status, "How one job stands."),
            ("wait", wait, "Wait until a job is over."),
            ("cancel", cancel, "End a job."),
            ("logs", logs, "Read a log of a job."),
        ),
    )


def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="At most so many.")] = 20,
    active: Annotated[bool, typer.Option("--active", metavar=FLAG, help="Only those not over.")] = False,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """List jobs, newest first, with their state.

    States: queued, running, succeeded, failed, cancelled, timed_out, lost.
    A job whose supervisor was killed is swept: what is left of it is ended, and it is lost.

    Example: plumbline job list --active
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.engines.local.engine import LocalEngine
    from plumbline_mcp.workspace import RunState, default_home

    if not (home or default_home()).is_dir():  # nobody ran anything here yet: no mistake
        print_json([]) if json_output else console().print("no job yet; next: plumbline run --help")
        return
    workspace = _existing(home)
    engine, states = LocalEngine(workspace), (RunState.SUBMITTING, RunState.RUNNING) if active else (None,)
    runs = [run for state in states for run in workspace.runs_list(state, limit)]
    found = [(run, engine.status(run.run_id)) for run in runs]
    shown = [(run, known) for run, known in found if not (active and known.state.over)]
    if json_output:
        print_json([known.model_dump() | {"approval": run.job.approval} for run, known in shown])
        return
    cells = (
        [
            untrusted(run.run_id),
            untrusted(known.state),
            untrusted(known.submitted[:16]),
            untrusted(run.job.framework),
            untrusted(known.reason),
        ]
        for run, known in shown
    )
    if shown:
        console().print(table("job", "state", "submitted (UTC)", "framework", "why", rows=cells))
    else:
        console().print("no job" + (" runs now" if active else " yet; next: plumbline run --help"))


def status(identifier: _Id, json_output: Json = False, home: Home = None) -> None:
    """Say how one job stands: state and reason, the first rank that failed, what holds it, its approval.

    Example: plumbline job status load-0001
    """
    from plumbline_mcp.engines.local.engine import LocalEngine

    workspace = _existing(home)
    _show(workspace, LocalEngine(workspace).status(identifier), json_output)


def wait(identifier: _Id, json_output: Json = False, quiet: Quiet = False, home: Home = None) -> int:
    """Follow a job until it is over. To stop waiting does not end the job.

    Exit codes: 0 it succeeded, 2 it did not, 3 usage error or crash.

    Example: plumbline job wait load-0001
    """
    import anyio

    workspace = _existing(home)
    known = anyio.run(_followed, workspace, identifier, quiet or json_output)
    _show(workspace, known, json_output)
    if known.state != "succeeded":
        return ExitCode.COULD_NOT_JUDGE
    if not json_output:
        _print_next(workspace, known.run_id)
    return ExitCode.PASS


def _print_next(workspace: "Workspace", run_id: str) -> None:
    from plumbline_mcp.cli.following import next_command, next_signed, pack_of
    from plumbline_mcp.cli.screen import console, labelled

    job = workspace.run(run_id).job
    following = next_signed(workspace, job)
    following = following or next_command(run_id, job.procedure, pack_of(job), job.inputs, job.interpreter)
    console().print(labelled("next: ", following, limit=4000), soft_wrap=True)


def cancel(
    identifier: _Id, grace: _Grace = None, json_output: Json = False, quiet: Quiet = False, home: Home = None
) -> None:
    """End a job with everything that it started, and seal what it recorded. One that is over stays as it is.

    Example: plumbline job cancel load-0001 --grace 30
    """
    import anyio

    from plumbline_mcp.engines.local.engine import LocalEngine

    workspace = _existing(home)
    LocalEngine(workspace).cancel(identifier, grace, why="cancelled from the command line")
    _show(workspace, anyio.run(_followed, workspace, identifier, quiet or json_output), json_output)


def logs(
    identifier: _Id,
    rank: _Rank = None,
    stream: Annotated[StreamName, typer.Option(help="What it printed, or its errors.")] = StreamName.OUT,
    launcher: _Launcher = False,
    offset: _Offset = None,
    most: _Bytes = 64 * 1024,
    follow: _Follow = False,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Read a log of a job, its end by default; control characters are shown, not obeyed.

    Offsets count what the job wrote. Of a log above its limit head and tail are kept, also while it runs,
    and a line says how many bytes were dropped between them.
    With --json one page: its text, where it begins, where the next one does, what was dropped before it, and
    how much the job wrote.

    Example: plumbline job logs load-0001 --stream err --offset 0
    """
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.engines.logs import read_log

    workspace = _existing(home)
    run = workspace.runs / workspace.run(identifier).run_id
    whose = None if launcher else rank or 0

    def read(start: int, limit: int) -> "LogPage":
        return read_log(run, whose, stream.value, start, limit)

    begin = -most if offset is None else offset
    page = _once_begun(workspace, identifier, read, begin, most) if follow else read(begin, most)
    if json_output:
        about = page.model_dump(exclude={"data"}) | {"text": page.data.decode("utf-8", "replace")}
        print_json(about)
        return
    text = codecs.getincrementaldecoder("utf-8")("replace")  # a page may end within a character
    page = _print_pages(page, read, most, text)
    if follow:
        _follow_log(workspace, identifier, read, page, text, most)
    _print_text(text.decode(b"", final=True))


def _once_begun(workspace: "Workspace", identifier: str, read: "_Read", begin: int, most: int) -> "LogPage":
    """The first page, as soon as the job has a log. Raises `NotEvaluated` where it ended without one."""
    import time

    from plumbline_mcp.engines.local.engine import LocalEngine
    from plumbline_mcp.engines.logs import NotBegun

    engine = LocalEngine(workspace)
    while True:
        over = engine.status(identifier).state.over
        try:
            return read(begin, most)
        except NotBegun:
            if over:
                raise
        time.sleep(0.2)


def _print_pages(page: "LogPage", read: "_Read", most: int, text: codecs.IncrementalDecoder) -> "LogPage":
    """Print a page and, within the bytes that were asked for, what lies behind a gap; returns the last."""
    while True:
        if page.dropped:
            _print_text(f"\n[{page.dropped} bytes of this log were dropped here]\n")
        _print_text(text.decode(page.data))
        most -= len(page.data)
        if not page.data or most <= 0 or page.next_offset >= page.size:
            return page
        page = read(page.next_offset, most)


def _follow_log(
    workspace: "Workspace",
    identifier: str,
    read: "_Read",
    page: "LogPage",
    text: codecs.IncrementalDecoder,
    most: int,
) -> None:
    """Print what is appended, until the job is over and the log is read to its end."""
    import time

    from plumbline_mcp.engines.local.engine import LocalEngine

    engine, over = LocalEngine(workspace), False
    while not over or page.data:
        over = engine.status(identifier).state.over
        page = _print_pages(read(page.next_offset, most), read, most, text)
        if not page.data and not over:
            time.sleep(0.2)


if TYPE_CHECKING:
    from collections.abc import Callable

    _Read = Callable[[int, int], LogPage]


def _print_text(text: str) -> None:
    from approvals.visible import visible

    sys.stdout.write(visible(text, 20 * len(text) + 1))
    sys.stdout.flush()


async def _followed(workspace: "Workspace", identifier: str, quiet: bool) -> "Status":
    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.engines.foreground import follow
    from plumbline_mcp.engines.local.engine import LocalEngine

    with shown_progress(identifier, quiet) as progress:
        return await follow(LocalEngine(workspace), workspace, identifier, progress)


def _show(workspace: "Workspace", known: "Status", as_json: bool) -> None:
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted

    job = workspace.run(known.run_id).job
    folder = workspace.runs / known.run_id
    about = {
        "procedure": job.procedure,
        "ranks": job.world_size,
        "engine": job.engine,
        "approval": job.approval,
        "confinement": job.confinement,
        "folder": str(folder) if folder.is_dir() else "removed",
    }
    facts = known.model_dump(mode="json") | about
    if as_json:
        print_json(facts)
        return
    rows = [
        [untrusted(name.replace("_", " ")), untrusted(", ".join(value) if isinstance(value, list) else value)]
        for name, value in facts.items()
        if value not in (None, "", []) and name not in ("seen_at", "restarts")
    ]
    console().print(table("of the job", "value", rows=rows))


def _existing(home: object) -> "Workspace":
    from pathlib import Path

    from plumbline_mcp.workspace import Workspace

    return Workspace.open(Path(str(home)) if home else None, create=False)
