"""``plumbline list``: verdicts, runs, checks or connection packs."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import Home, Json, paragraphs

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from checks.references.packs import Pack, Setting
    from plumbline_mcp.workspace import Workspace


class Kind(StrEnum):
    """What can be listed."""

    VERDICTS = "verdicts"
    RUNS = "runs"
    CHECKS = "checks"
    PACKS = "packs"


class OutcomeName(StrEnum):
    """The outcomes, as `checks.verdict.Outcome` (not imported here: help must not wait for pydantic)."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_EVALUATED = "not_evaluated"


NAME = "list"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(list_.__doc__),
        short_help="List verdicts, runs, checks or connection packs.",
    )(list_)


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.VERDICTS,
    check: Annotated[str | None, typer.Option(metavar="NAME", help="Only verdicts of this check.")] = None,
    outcome: Annotated[OutcomeName | None, typer.Option(help="Only verdicts with this outcome.")] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="At most so many, newest first.")
    ] = 20,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on after this verdict or run.")] = None,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """List what is in the workspace (verdicts, runs), or what this version knows (checks, packs).

    Example: plumbline list checks
    """
    from plumbline_mcp.cli.screen import console, print_json

    shown: RenderableType
    if kind is Kind.CHECKS:
        rows, shown = _checks()
    elif kind is Kind.PACKS:
        rows, shown = _packs()
    elif kind is Kind.RUNS:
        rows, shown = _runs(home, limit, after)
    else:
        rows, shown = _verdicts(home, check, outcome, limit, after)
    if json_output:
        print_json(rows)
    elif rows:
        console().print(shown)
    elif check or outcome or after:
        console().print(f"no {kind.value} that fit; without --check, --outcome and --after all are listed")
    else:
        console().print(_nothing(kind, home))


def _nothing(kind: Kind, home: Any) -> "Text":
    """What to say, and do first, where there is nothing to list."""
    from plumbline_mcp.cli.screen import labelled
    from plumbline_mcp.workspace import default_home

    example = "plumbline onboard (scans a tiny model that it makes, in minutes)"
    own = {Kind.VERDICTS: "plumbline check --help (your own files)", Kind.RUNS: "plumbline run --help"}
    first = f"no {kind.value} yet; next: {example}, or {own.get(kind, '')}\n"
    place = (home or default_home()).expanduser().absolute()
    return labelled(f"{first}looked in ", place, "").append("; --home or PLUMBLINE_HOME names another folder")


def _checks() -> tuple[list[dict[str, Any]], "Table"]:
    import checks
    from plumbline_mcp.cli.screen import table, untrusted

    rows = [
        {"name": check.name, "title": check.title, "question": check.question, "training": check.training}
        for check in checks.discover().values()
    ]
    cells = ([untrusted(row[key]) for key in ("name", "training", "question")] for row in rows)
    return rows, table("check", "training", "question", rows=cells)


def _packs() -> tuple[list[dict[str, Any]], "RenderableType"]:
    from rich.console import Group

    from checks.references.packs import built_in, load_pack
    from plumbline_mcp.cli.screen import table, untrusted

    packs = [load_pack(name) for name in built_in()]
    rows = [
        {
            "name": pack.name,
            "procedures": sorted(pack.about.procedures),
            "path": str(pack.folder),
            "settings": [setting.model_dump(mode="json") for setting in pack.settings.setting],
        }
        for pack in packs
    ]
    cells = (
        [untrusted(pack.name), untrusted(", ".join(sorted(pack.about.procedures))), untrusted(pack.folder)]
        for pack in packs
    )
    return rows, Group(table("pack", "procedures", "folder", rows=cells), *map(_settings, packs))


def _settings(pack: "Pack") -> "Table":
    """What `plumbline run --set NAME=VALUE` takes for a pack."""
    from plumbline_mcp.cli.screen import table, untrusted

    cells = (
        [untrusted(setting.name), untrusted(_values(setting)), untrusted(setting.description)]
        for setting in pack.settings.setting
    )
    title = f"{pack.name}: plumbline run --set NAME=VALUE"
    return table("name", "value", "what it decides", rows=cells, title=title)


def _values(setting: "Setting") -> str:
    """What a setting may be, and what it is by default; or that the framework refuses it."""
    import json

    if setting.status == "refused":
        return "refused by the framework"
    allowed = " | ".join(setting.choices) or setting.type
    return allowed if setting.default is None else f"{allowed}, default {json.dumps(setting.default)}"


def _runs(home: Any, limit: int, after: str | None) -> tuple[list[dict[str, Any]], "Table"]:
    from plumbline_mcp.cli.run_view import run_ending
    from plumbline_mcp.cli.screen import table, untrusted

    workspace = _existing(home)
    if workspace is None:
        return [], table(rows=())
    rows = [
        {
            "id": run.run_id,
            "created": run.created,
            "state": run.state.value,
            "procedure": run.job.procedure,
            "framework": run.job.framework,
            "ended": run_ending(workspace, run),
            "manifest_sha256": run.manifest_sha256,
        }
        for run in workspace.runs_list(limit=limit, after=after)
    ]
    cells = (
        [
            untrusted(row["id"], limit=60),
            untrusted((row["created"] or "")[:16]),
            untrusted(row["framework"], limit=60),
            untrusted(row["ended"]),
        ]
        for row in rows
    )
    return rows, table("run", "started (UTC)", "framework", "how it ended", rows=cells)


def _verdicts(
    home: Any, check: str | None, outcome: OutcomeName | None, limit: int, after: str | None
) -> tuple[list[dict[str, Any]], "Table"]:
    from rich.text import Text

    from plumbline_mcp.cli.screen import outcome_text, table, untrusted
    from plumbline_mcp.report.subjects import subject

    workspace = _existing(home)
    wanted = outcome.value if outcome else None
    found = workspace.verdicts(check, wanted, limit, after) if workspace else []
    rows = [
        {
            "id": stored.verdict.id,
            "check": stored.verdict.check,
            "outcome": stored.verdict.outcome.value,
            "reason": stored.verdict.reason,
            "created": stored.created,
            "inputs": stored.inputs,
        }
        for stored in found
    ]
    cells = (
        [
            untrusted(stored.verdict.id).append(f"\n{stored.created[:16]}", "dim"),
            outcome_text(stored.verdict.outcome),
            Text("\n").join(untrusted(line, limit=200) for line in subject(stored)),
            untrusted(stored.verdict.reason),
        ]
        for stored in found
    )
    return rows, table("verdict, stored (UTC)", "outcome", "judged", "reason", rows=cells)


def _existing(home: Any) -> "Workspace | None":
    """The workspace, None when there is none: to list is no reason to make one."""
    from plumbline_mcp.workspace import Workspace, default_home

    return Workspace.open(home) if (home or default_home()).is_dir() else None
