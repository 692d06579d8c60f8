"""``plumbline version``: what judges here, which versions there are, what differs, and freezing one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import FLAG, ExitCode, Home, Json
from plumbline_mcp.cli.signing import Key, Reason, approve_shown
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.scan.versions import Difference
    from plumbline_mcp.workspace import Workspace


NAME = "version"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Show, list, compare and freeze versions.",
        (
            ("show", show, "Show the system version."),
            ("list", list_, "List the versions that this workspace knows."),
            ("diff", diff, "Say what differs between two versions."),
            ("freeze", freeze, "Freeze this tree under a reviewer's signature."),
        ),
    )


_HELP = """The system version: release number, digest over everything that judges, reference libraries.

Example: plumbline version show
"""


def show(json_output: Json = False, home: Home = None) -> None:
    """Show release, digest, reference libraries, whether this tree is a frozen one, and who signed it.

    Only signatures that hold by the trust roots of this machine are named.

    Example: plumbline version show --json
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.version import frozen_approvals, system_version

    version = system_version()
    signers: tuple[str, ...] = ()
    if (
        version.frozen and frozen_approvals()
    ):  # the trust roots are looked at only where there is something to hold
        from plumbline_mcp.scan.versions import frozen_by

        signers = frozen_by(_workspace(home), frozen_approvals(), version.digest)
    if json_output:
        print_json({"version": str(version), **version.model_dump(), "signers": signers})
        return
    rows = [
        ("version", str(version)),
        ("digest", version.digest),
        ("frozen", "yes" if version.frozen else "no: this tree equals no frozen digest list"),
        ("signed by", ", ".join(signers) or "nobody whose key is enrolled here"),
        ("files", str(len(version.files))),
        *version.pins.items(),
    ]
    console().print(table("of the version", "value", rows=([untrusted(a), untrusted(b)] for a, b in rows)))


def list_(json_output: Json = False, home: Home = None) -> None:
    """List the installed version, those frozen or asked for here, and those that verdicts were given by.

    Example: plumbline version list
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.scan.versions import known
    from plumbline_mcp.workspace import Workspace

    listed = known(Workspace.open(home, create=False))
    if json_output:
        print_json([one.model_dump(mode="json") for one in listed])
        return
    texts = (
        (
            one.name,
            "yes" if one.installed else "",
            "yes" if one.frozen else one.state,
            ", ".join(one.signers),
            str(one.verdicts),
            one.ticket or "",
        )
        for one in listed
    )
    cells = ([untrusted(text) for text in row] for row in texts)
    console().print(table("version", "installed", "frozen", "signed by", "verdicts", "ticket", rows=cells))


def diff(
    before: Annotated[
        str,
        typer.Argument(metavar="A", help="A version's name, the beginning of its digest, or a frozen.json."),
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", help="The same; `installed` is this program.")
    ] = "installed",
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Say which files, reference libraries and rules differ: what could judge otherwise.

    Exit codes: 0 nothing differs, 1 something does, 3 usage error or crash.

    Example: plumbline version diff 0.1.0-1a2b3c4d5e6f installed
    """
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.versions import content_of, difference

    workspace = _workspace(home)
    found = difference(content_of(workspace, before), content_of(workspace, after))
    if json_output:
        print_json({**found.model_dump(mode="json"), "same": found.same})
    else:
        _print(found)
    return ExitCode.PASS if found.same else ExitCode.FAIL


def freeze(
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Sign now, as this reviewer.")] = "",
    key: Key = None,
    reason: Reason = "",
    ask: Annotated[bool, typer.Option("--ask", metavar=FLAG, help="Only ask; reviewers sign later.")] = False,
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Freeze this tree: every verdict then names it, and any changed file unfreezes it.

    The first call asks for the signature; with --as it also shows the request (with --json on standard error)
    and signs it, on the terminal. Called again once enough reviewers have signed, it writes the digest list
    beside the program, with their statements.

    Exit codes: 0 frozen, 2 it still waits for a signature, 3 usage error or crash.

    Example: plumbline version freeze --as ada
    """
    from plumbline_mcp import version
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.cli.who import who_asks
    from plumbline_mcp.scan import versions
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home)
    ticket = versions.ask(workspace, who_asks()[0])
    if as_ and not ask and ticket.state.value == "pending":
        ticket = approve_shown(workspace.approvals, ticket, as_, reason, key, stderr=json_output)
    signed = ticket.state.value == "approved" and not ask
    path = versions.freeze(workspace, ticket.id) if signed else None
    name = str(version.system_version())
    if json_output:
        told = {"version": name, "digest": version.system_version().digest, "ticket": ticket.id}
        print_json({**told, "frozen": bool(path), "path": str(path) if path else None})
    elif path:
        console().print(labelled("frozen: ", name))
        console().print(labelled("list:   ", path), soft_wrap=True)
    else:
        console().print(labelled("waits:  ", f"{ticket.id} ({ticket.state})"))
        console().print(labelled("next:   ", f"plumbline queue approve {ticket.id}, then this command again"))
    return ExitCode.PASS if path else ExitCode.COULD_NOT_JUDGE


def _print(found: "Difference") -> None:
    from plumbline_mcp.cli.screen import console, table, untrusted

    out = console()
    out.print(untrusted(f"{found.before} -> {found.after}"), soft_wrap=True)
    if found.same:
        out.print("nothing differs: both judge alike")
    for title, pairs in (("rule", found.rules), ("reference library", found.pins)):
        rows: list[list[Any]] = [
            [untrusted(name), untrusted(old or "(none)"), untrusted(new or "(none)")]
            for name, (old, new) in pairs.items()
        ]
        if rows:
            out.print(table(title, "before", "after", rows=rows))
    if found.files:
        rows = [[untrusted(name), untrusted(what)] for name, what in found.files.items()]
        out.print(table("file", "what", rows=rows))


def _workspace(home: Path | None) -> "Workspace | None":
    """The workspace where there is one: to look is no reason to make it."""
    from plumbline_mcp.server.tokens import existing_workspace

    return existing_workspace(home)
