"""``plumbline run PROCEDURE``: start one job of a connection pack in the framework's own interpreter."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json, Quiet, paragraphs

if TYPE_CHECKING:
    from checks.records.runs import RunFolder
    from plumbline_mcp.engines.launching import Launch
    from plumbline_mcp.workspace import Workspace

NAME = "run"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME, help=paragraphs(run.__doc__), short_help="Run a framework's procedure and record it."
    )(run)


_Procedure = Annotated[str, typer.Argument(metavar="PROCEDURE", help="rows, or export.")]
_Model = Annotated[Path, typer.Option(metavar="PATH", help="Folder of the official release.")]
_Workload = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Conversations, JSONL or JSON (rows needs it).")
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
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> int:
    """Run a procedure of a connection pack: the framework's own code, in its own environment, no training.

    It leaves a sealed run folder that a check judges: `rows` feeds check data, `export` feeds check export.
    You start the job, here; agents cannot start one. Exit code 0 when it ended by itself, 2 otherwise.

    Example: plumbline run rows --model models/gpt-oss-20b --workload train.jsonl --set shuffle=false
    """
    import anyio

    from plumbline_mcp.engines.launching import Launch
    from plumbline_mcp.workspace import Workspace

    inputs = {"model": model, "workload": workload, "template": template}
    launch = Launch(
        framework=framework,
        procedure=procedure,
        interpreter=python or Path(sys.executable),
        inputs={name: path for name, path in inputs.items() if path is not None},
        settings=_settings(set_ or []),
        time_limit_s=time_limit,
        target={"model": model.name},
    )
    done = anyio.run(_launched, Workspace.open(home), launch, python is None, quiet)
    _show(done, launch, json_output)
    return ExitCode.PASS if all(exit_.clean for exit_ in done.exits()) else ExitCode.COULD_NOT_JUDGE


async def _launched(workspace: "Workspace", launch: "Launch", build: bool, quiet: bool) -> "RunFolder":
    """Run the launch, in the pack's own environment when no interpreter was named."""
    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.engines.foreground import run as run_foreground
    from plumbline_mcp.engines.launching import prepare

    prepare(launch, "unnamed")  # a mistake is met before an environment is built for minutes
    with shown_progress(f"run {launch.procedure}", quiet) as progress:
        if build:
            interpreter = await _pack_interpreter(launch.framework, progress)
            launch = launch.model_copy(update={"interpreter": interpreter})
        return await run_foreground(workspace, launch, progress)


def _show(done: "RunFolder", launch: "Launch", as_json: bool) -> None:
    from plumbline_mcp.cli.screen import print_json

    if as_json:
        exits = [exit_.model_dump() for exit_ in done.exits()]
        print_json({"run_id": done.job.run_id, "folder": str(done.path), "exits": exits})
    else:
        _print(done, launch)


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


def _settings(pairs: list[str]) -> dict[str, Any]:
    from plumbline_mcp.cli.inputs import scalar

    settings = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        settings[name.strip()] = scalar(value)
    return settings


def _print(done: "RunFolder", launch: "Launch") -> None:
    from plumbline_mcp.cli.run_view import print_ranks
    from plumbline_mcp.cli.screen import console, labelled

    out = console()
    out.print(labelled("run:    ", done.job.run_id))
    print_ranks(out, done)
    out.print(labelled("folder: ", done.path), soft_wrap=True)
    clean = all(exit_.clean for exit_ in done.exits())
    # after a failure a check has nothing to judge
    failed = f"plumbline show {done.job.run_id}, or the log above, says why; correct it and run it again"
    following = _next(done.job.run_id, launch) if clean else failed
    out.print(labelled("next:   ", following), soft_wrap=True)


def _next(run_id: str, launch: "Launch") -> str:
    common = f"--framework {launch.framework}"
    if launch.procedure == "rows":
        inputs = f"--model {launch.inputs['model']} --workload {launch.inputs['workload']}"
        return f"plumbline check data {inputs} --rows {run_id} {common}"
    return (
        f"plumbline check {launch.procedure} --original {launch.inputs['model']} --export {run_id} {common}"
    )
