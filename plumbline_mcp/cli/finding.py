"""``plumbline finding``: root causes: propose, show, have them decided."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.findings.records import StoredFinding
    from plumbline_mcp.workspace import Workspace

NAME = "finding"

_HELP = """A finding is one root cause with its evidence. Somebody proposes it, somebody else rebuilds it from
the raw records without being told (`plumbline verify`), and a reviewer signs.

Example: plumbline finding list
"""


class StateName(StrEnum):
    """The states, as `plumbline_mcp.findings.states.State` (help must not wait for pydantic)."""

    PROPOSED = "proposed"
    REBUILT = "rebuilt"
    DISPUTED = "disputed"
    CONFIRMED = "confirmed"
    DEPARTURE = "departure"
    REFUSED = "refused"


Id = Annotated[str, typer.Argument(metavar="ID", help="The finding, as `plumbline finding list` names it.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="Who you are; by default your account.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Propose, show and decide root causes.",
        (
            ("list", list_, "List findings and how they stand."),
            ("show", show, "Show one finding with its evidence and history."),
            ("propose", propose, "Propose a root cause."),
            ("confirm", confirm, "Ask for the signature, or close by it."),
            ("refuse", refuse, "Close a disputed finding."),
        ),
    )


def list_(
    state: Annotated[StateName | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="At most so many, newest first.")
    ] = 20,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on after this finding.")] = None,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """List findings, newest first, with their state.

    Example: plumbline finding list --state rebuilt
    """
    from plumbline_mcp.cli.finding_view import findings_table
    from plumbline_mcp.cli.screen import console, print_json
    from plumbline_mcp.findings.store import Findings
    from plumbline_mcp.workspace import Workspace, default_home

    if not (home or default_home()).is_dir():  # nobody found anything here yet: no mistake
        print_json([]) if json_output else console().print("no finding yet")
        return
    found = Findings(Workspace.open(home)).page(state.value if state else None, limit, after)
    if json_output:
        print_json(found)
    elif found:
        console().print(findings_table(found))
    else:
        console().print(f"no finding is {state.value}" if state else "no finding yet")


def show(identifier: Id, json_output: Json = False, home: Home = None) -> None:
    """Show one finding: cause, place, evidence, what each verifier found, and every step.

    Example: plumbline finding show finding-0001
    """
    from plumbline_mcp.findings.store import Findings

    findings = Findings(_workspace(home))
    _show(findings.get(identifier), json_output, unprepared=findings.unprepared(identifier))


def propose(
    verdicts: Annotated[
        list[str], typer.Argument(metavar="VERDICT...", help="Verdicts it rests on; the first is rebuilt.")
    ],
    title: Annotated[str, typer.Option(metavar="TEXT", help="One line.")],
    pattern: Annotated[
        int,
        typer.Option(
            min=1,
            max=7,
            metavar="1..7",
            help="1 tokens or masks, 2 layers, 3 length, 4 updates, 5 resume, 6 conversion, 7 launch.",
        ),
    ],
    silent: Annotated[
        bool, typer.Option("--silent/--loud", help="Whether training goes on and nothing is logged.")
    ],
    cause: Annotated[str, typer.Option(metavar="TEXT", help="The root cause, and where it lies.")],
    fix: Annotated[str, typer.Option(metavar="TEXT", help="The fix, or the workaround.")],
    cheapest_check: Annotated[
        str, typer.Option(metavar="TEXT", help="The cheapest check that catches it again.")
    ],
    cause_place: Annotated[
        str, typer.Option(metavar="PLACE", help="Where the cause lies: file and line, or package.")
    ] = "",
    also_check: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Another combination worth checking; repeatable.")
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Where it shows: rank, step, row, token, tensor, field, ..."),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A measured value that it rests on, as PART: MEASUREMENT."),
    ] = None,
    evidence: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN:FILE[:SPAN]", help='A sealed file; SPAN: "row 3", "bytes 0-63", ...'),
    ] = None,
    framework: Annotated[
        str, typer.Option(metavar="NAME", help="Whose cause it is, where the verdict names no framework.")
    ] = "",
    as_: As = "",
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Propose a root cause. What you state is what somebody else has to find: place and values.

    Without --place it is the place of the verdict's first problem. Without --evidence it is the file of the
    place, as the verdict names it, else every file that the verdict rests on; of more than 50 those of the
    place's rank, else they have to be named.

    Example: plumbline finding propose export-0002 --title "Router biases are lost" --pattern 6 --silent
    --cause "the exporter drops buffers" --fix "keep buffers" --cheapest-check "check export"
    """
    from plumbline_mcp.cli.inputs import settings_of
    from plumbline_mcp.findings.proposing import proposal_of
    from plumbline_mcp.findings.proposing import propose as store

    given: dict[str, Any] = {
        "pattern": pattern,
        "silent": silent,
        "title": title,
        "cause": cause,
        "cause_place": cause_place,
        "fix": fix,
        "cheapest_check": cheapest_check,
        "also_check": also_check or [],
        "verdicts": verdicts,
        "place": settings_of(place) if place else None,
        "values": _values(value or []),
        "evidence": evidence or [],
        "framework": framework,
    }
    stored = store(_workspace(home), proposal_of(given), person(as_))
    _show(stored, json_output, f"plumbline verify {stored.finding.id} --recompute")


def confirm(
    identifier: Id,
    departure: Annotated[
        str,
        typer.Option(metavar="CITATION", help="Close it as a departure that the framework documents, here."),
    ] = "",
    as_: As = "",
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Put a rebuilt finding before the reviewers; once they signed, close it. Run it again to see.

    Exit codes: 0 confirmed or accepted, 1 refused, 2 nobody has decided yet, 3 usage error.

    Example: plumbline finding confirm finding-0001
    """
    from plumbline_mcp.cli.who import who_asks
    from plumbline_mcp.findings.confirming import decide, open_ticket

    workspace = _workspace(home)
    name, uid = who_asks(as_)
    stored = decide(workspace, identifier, name, departure, uid)
    ticket = open_ticket(workspace, stored)
    waits = stored.state.value == StateName.REBUILT.value and ticket is not None
    step = f'plumbline queue approve {ticket.id} --reason "..."' if ticket and waits else ""
    _show(stored, json_output, step)
    return {"confirmed": ExitCode.PASS, "departure": ExitCode.PASS, "refused": ExitCode.FAIL}.get(
        stored.state.value, ExitCode.COULD_NOT_JUDGE
    )


def refuse(
    identifier: Id,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")],
    as_: As = "",
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Close a finding that a verifier disputed. A rebuilt one is refused by a signed rejection alone.

    Example: plumbline finding refuse finding-0002 --reason "it was the other layer"
    """
    from plumbline_mcp.findings.confirming import refuse as close

    _show(close(_workspace(home), identifier, person(as_), reason), json_output)


def person(named: str) -> str:
    """Who runs the program. Raises `UsageError` for a name that cannot stand in a request."""
    from plumbline_mcp.cli.who import who_asks

    return who_asks(named)[0]


def _workspace(home: Any) -> "Workspace":
    from plumbline_mcp.workspace import Workspace

    return Workspace.open(home, create=False)


def _values(pairs: list[str]) -> dict[str, Any]:
    """``PART: MEASUREMENT=NUMBER``: the last = divides, because a measurement's name may hold one."""
    from plumbline_mcp.cli.inputs import scalar

    values = {}
    for pair in pairs:
        name, sign, number = pair.rpartition("=")
        if not sign or not isinstance(scalar(number), int | float):
            raise typer.BadParameter(f"{pair!r} is not NAME=NUMBER", param_hint="--value")
        values[name.strip()] = scalar(number)
    return values


def _show(stored: "StoredFinding", json_output: bool, step: str = "", unprepared: str = "") -> None:
    from plumbline_mcp.cli.finding_view import print_finding
    from plumbline_mcp.cli.screen import print_json

    if json_output:
        told = stored.model_dump(mode="json", exclude={"verifications": {"__all__": {"kept"}}})
        print_json(told | {"next_step": step, "unprepared": unprepared})
    else:
        print_finding(stored, step, unprepared)
