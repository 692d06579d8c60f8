"""``plumbline faults``: the recall corpus, one planted fault an entry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, ExitCode, Home, Json, Quiet
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.scan.faults import FaultsResult

NAME = "faults"

_HELP = """The corpus of known faults, each with what has to find it; clean entries must raise no alarm.

Example: plumbline faults list
"""

_Corpus = Annotated[
    Path | None,
    typer.Option(
        "--corpus", metavar="FOLDER", help="The fault corpus; that of the source checkout by default."
    ),
]
_Pattern = Annotated[
    int | None,
    typer.Option(
        "--pattern", metavar="N", min=1, max=7, help="Only faults of this one of the seven patterns."
    ),
]
_Ids = Annotated[list[str] | None, typer.Option("--id", metavar="FAULT", help="Only this one; repeatable.")]
_Quick = Annotated[
    bool, typer.Option("--quick", metavar=FLAG, help="Only the entries that the test suite plays.")
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Play or list the corpus of known faults.",
        (
            ("list", list_, "List the fault entries."),
            ("run", run, "Play fault entries and score the checks."),
        ),
    )


def list_(
    corpus: _Corpus = None,
    pattern: _Pattern = None,
    quick: _Quick = False,
    json_output: Json = False,
) -> None:
    """List the fault entries with the check and place that has to find each.

    Example: plumbline faults list --corpus tests/faults
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.scan.fault_entries import load_corpus
    from plumbline_mcp.scan.faults import chosen

    entries = chosen(load_corpus(corpus), pattern, (), quick)
    if json_output:
        print_json(entries)
        return
    rows = (
        [
            untrusted(entry.id),
            untrusted(entry.pattern),
            untrusted("clean" if entry.clean else "silent" if entry.silent else "loud"),
            untrusted("; ".join(str(expected) for expected in entry.expect) or "no alarm"),
        ]
        for entry in entries
    )
    console().print(table("id", "pattern", "kind", "has to be found", rows=rows))


def run(
    corpus: _Corpus = None,
    pattern: _Pattern = None,
    ids: _Ids = None,
    quick: _Quick = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Entries played at a time.")
    ] = 1,
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> int:
    """Play each entry through the scan that a user would run: found at its place, or not.

    Exit codes: 0 all as expected, 1 a miss or a false alarm, 2 an entry could not be played, 3 usage error.

    Example: plumbline faults run --corpus tests/faults --id stop-token-unlabelled
    """
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.faults import run as play
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home)

    async def played() -> "FaultsResult":
        with shown_progress("faults", quiet or json_output) as progress:
            return await play(
                workspace, corpus, pattern=pattern, ids=ids or (), quick=quick, jobs=jobs, progress=progress
            )

    result = anyio.run(played)
    if json_output:
        print_json(result)
    else:
        _print(result)
    return _exit_code(result)


def _print(result: "FaultsResult") -> None:
    from rich.text import Text

    from plumbline_mcp.cli.screen import console, table, untrusted
    from plumbline_mcp.scan.fault_scoring import GOOD

    rows = (
        [
            untrusted(entry.id),
            Text(
                f"{'✓' if entry.score in GOOD else '✗'} {entry.score.value}",
                "green" if entry.score in GOOD else "bold red",
            ),
            untrusted(f"{entry.seconds:.1f}"),
            untrusted("; ".join(entry.extra or entry.seen) or entry.reason),
        ]
        for entry in result.results
    )
    out = console()
    out.print(table("id", "score", "s", "seen", rows=rows))
    out.print(
        f"{result.faults_found} of {result.faults} faults found at their place and alone, "
        f"{result.false_alarms} false alarms in {result.clean} clean entries, {result.seconds:.0f} s"
    )


def _exit_code(result: "FaultsResult") -> ExitCode:
    from plumbline_mcp.scan.fault_scoring import GOOD, Score

    bad = {entry.score for entry in result.results} - set(GOOD)
    if not bad:
        return ExitCode.PASS
    return ExitCode.COULD_NOT_JUDGE if bad <= {Score.NOT_PLAYED, Score.UNDECIDED} else ExitCode.FAIL
