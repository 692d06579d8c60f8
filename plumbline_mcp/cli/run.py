"""``plumbline run PROCEDURE``: start one job of a connection pack in the framework's own interpreter."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import FLAG, ExitCode, Home, Json, Quiet, paragraphs

if TYPE_CHECKING:
    from checks.records.runs import RunFolder
    from plumbline_mcp.engines.launching import Launch
    from plumbline_mcp.workspace import StoredRun, Workspace

NAME = "run"


class ConfinementName(StrEnum):
    """As `plumbline_mcp.engines.launching.Confinement` (help must not wait for its import)."""

    AUTO = "auto"
    LANDLOCK = "landlock"
    BUBBLEWRAP = "bubblewrap"
    UID = "uid"
    NONE = "none"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME, help=paragraphs(run.__doc__), short_help="Run a framework's procedure and record it."
    )(run)


_Procedure = Annotated[
    str,
    typer.Argument(metavar="PROCEDURE", help="rows, export, dry_run, build, load, train_step, first_run."),
]
_Model = Annotated[Path, typer.Option(metavar="PATH", help="Folder of the official release.")]
_Workload = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Conversations, JSONL or JSON: for rows, train_step and first_run."),
]
_Template = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Chat template, where it is not the release's own.")
]
_Framework = Annotated[
    str, typer.Option(metavar="NAME", help="Built-in connection pack, or the path of a pack folder.")
]
_Python = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="The framework's interpreter; by default the pack's pinned environment is built."
    ),
]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the pack, JSON or text; `plumbline list packs` lists them; may be repeated.",
    ),
]
_Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=PATH", help="Another input of the procedure; may be repeated."),
]
_Confinement = Annotated[
    ConfinementName,
    typer.Option(help="What has to hold the job; auto: the first of them that works here."),
]
_Detach = Annotated[
    bool, typer.Option("--detach", "-d", metavar=FLAG, help="Start it, print its id and do not wait.")
]
_DiskLimit = Annotated[
    int | None,
    typer.Option("--disk-limit", min=0, metavar="BYTES", help="End the job above this; 64 GiB by default."),
]
_TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", min=1, metavar="SECONDS", help="End the job after this long.")
]


def run(
    procedure: _Procedure,
    model: _Model,
    workload: _Workload = None,
    template: _Template = None,
    framework: _Framework = "transformers",
    python: _Python = None,
    set_: _Set = None,
    time_limit: _TimeLimit = None,
    input_: _Input = None,
    disk_limit: _DiskLimit = None,
    confinement: _Confinement = ConfinementName.AUTO,
    detach: _Detach = False,
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> int:
    """Run a procedure of a connection pack: the framework's own code, in its own environment.

    It leaves a sealed run folder that a check judges: `rows` feeds check data, `export` feeds check export,
    `load` and `train_step` feed the checks of their name. The job is confined, and runs under a supervisor:
    Ctrl-C ends it; with --detach it goes on, and `plumbline job` shows and ends it. What you
    start here says `approval: none`; `plumbline job start` starts what a reviewer signed. Exit code 0 when
    every rank ended by itself, 2 otherwise.

    Example: plumbline run rows --model models/gpt-oss-20b --workload train.jsonl --set shuffle=false
    """
    import anyio

    from plumbline_mcp.cli.inputs import settings_of
    from plumbline_mcp.engines.launching import Launch
    from plumbline_mcp.workspace import Workspace

    inputs = {"model": model, "workload": workload, "template": template} | _inputs(input_ or [])
    limits = {"disk_bytes": disk_limit} if disk_limit is not None else {}
    launch = Launch(
        framework=framework,
        procedure=procedure,
        interpreter=python or Path(sys.executable),
        inputs={name: path for name, path in inputs.items() if path is not None},
        settings=settings_of(set_ or []),
        time_limit_s=time_limit,
        confinement=confinement.value,
        target={"model": model.name},
        **limits,
    )
    workspace = Workspace.open(home)
    silenced = quiet or json_output
    launch = anyio.run(_built, launch, python is None, silenced)
    if detach:
        return _detached(workspace, launch, json_output)
    done = anyio.run(_followed, workspace, launch, silenced)
    _show(workspace, done, launch, json_output)
    succeeded = workspace.run(done.job.run_id).outcome == "succeeded"
    return ExitCode.PASS if succeeded else ExitCode.COULD_NOT_JUDGE


async def _built(launch: "Launch", build: bool, quiet: bool) -> "Launch":
    """The launch in the pack's own environment when no interpreter was named."""
    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.engines.launching import prepare

    prepare(launch, "unnamed")  # a mistake is met before an environment is built for minutes
    if not build:
        return launch
    with shown_progress(f"run {launch.procedure}", quiet) as progress:
        interpreter = await _pack_interpreter(launch.framework, progress)
    return launch.model_copy(update={"interpreter": interpreter})


async def _followed(workspace: "Workspace", launch: "Launch", quiet: bool) -> "RunFolder":
    """Run the launch to its end."""
    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.engines.foreground import run as run_foreground

    with shown_progress(f"run {launch.procedure}", quiet) as progress:
        return await run_foreground(workspace, launch, progress)


def _detached(workspace: "Workspace", launch: "Launch", as_json: bool) -> int:
    """Start the job and say how to find it."""
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.engines.local.engine import LocalEngine

    run_id = LocalEngine(workspace).submit(launch)
    if as_json:
        print_json({"run_id": run_id, "folder": str(workspace.runs / run_id)})
    else:
        console().print(labelled("run:    ", run_id))
        console().print(labelled("next:   ", f"plumbline job wait {run_id}"))
    return ExitCode.PASS


def _show(workspace: "Workspace", done: "RunFolder", launch: "Launch", as_json: bool) -> None:
    from plumbline_mcp.cli.screen import print_json

    stored = workspace.run(done.job.run_id)
    if as_json:
        exits = [exit_.model_dump() for exit_ in done.exits()]
        about = {"run_id": done.job.run_id, "folder": str(done.path), "exits": exits}
        ended = {"outcome": stored.outcome, "reason": stored.reason, "approval": done.job.approval}
        print_json(about | ended)
    else:
        _print(done, launch, stored)


async def _pack_interpreter(framework: str, progress: Any) -> Path:
    """The interpreter of the pack's pinned environment, built when it is not in the cache."""
    from checks.references.packs import load_pack
    from plumbline_mcp.engines.environments import build_in_worker
    from plumbline_mcp.errors import UsageError

    wanted = load_pack(framework).about.environment
    if not wanted.requirements:
        raise UsageError(
            f"pack {framework} pins no environment", "name the framework's interpreter with --python"
        )
    environment = await build_in_worker(
        wanted.requirements, without_dependencies=wanted.without_dependencies, progress=progress
    )
    return environment.python


def _inputs(pairs: list[str]) -> dict[str, Path | None]:
    named: dict[str, Path | None] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip() or not value:
            raise typer.BadParameter(f"{pair!r} is not NAME=PATH", param_hint="--input")
        named[name.strip()] = Path(value)
    return named


def _print(done: "RunFolder", launch: "Launch", stored: "StoredRun") -> None:
    from plumbline_mcp.cli.following import next_command, pack_of
    from plumbline_mcp.cli.run_view import print_ranks
    from plumbline_mcp.cli.screen import console, labelled

    out = console()
    out.print(labelled("run:    ", done.job.run_id))
    print_ranks(out, done)
    if stored.reason:
        out.print(labelled("ended:  ", stored.reason), soft_wrap=True)
    out.print(labelled("folder: ", done.path), soft_wrap=True)
    clean = stored.outcome == "succeeded"
    # after a failure a check has nothing to judge
    failed = f"plumbline show {done.job.run_id}, or the log above, says why; correct it and run it again"
    job = done.job
    following = next_command(job.run_id, job.procedure, pack_of(job), job.inputs, job.interpreter)
    out.print(labelled("next:   ", following if clean else failed, limit=4000), soft_wrap=True)
