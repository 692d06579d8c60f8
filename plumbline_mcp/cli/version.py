"""``plumbline version``: what judges here, and freezing it."""

import typer

from plumbline_mcp.cli.options import Json, paragraphs

group = typer.Typer(add_completion=False, rich_markup_mode=None)


NAME = "version"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(group, name=NAME, help=_HELP, short_help="Show or freeze the system version.")
    group.command("show", help=paragraphs(show.__doc__), short_help="Show the system version.")(show)
    group.command("freeze", help=paragraphs(freeze.__doc__), short_help="Write this tree's digest list.")(
        freeze
    )


_HELP = """The system version: release number, digest over everything that judges, reference libraries.

Example: plumbline version show
"""


def show(json_output: Json = False) -> None:
    """Show release, digest, reference libraries and whether this tree is a frozen one.

    Example: plumbline version show --json
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.version import system_version

    version = system_version()
    if json_output:
        print_json({"version": str(version), **version.model_dump()})
        return
    rows = [
        ("version", str(version)),
        ("digest", version.digest),
        ("frozen", "yes" if version.frozen else "no: this tree equals no frozen digest list"),
        ("files", str(len(version.files))),
        *version.pins.items(),
    ]
    console().print(table("of the version", "value", rows=([untrusted(a), untrusted(b)] for a, b in rows)))


def freeze(json_output: Json = False) -> None:
    """Write the digest list that makes this tree a frozen version (a reviewer signs it).

    Example: plumbline version freeze
    """
    from plumbline_mcp import version
    from plumbline_mcp.cli.screen import console, print_json, untrusted

    path = version.freeze()
    frozen = version.system_version()
    if json_output:
        print_json({"version": str(frozen), "digest": frozen.digest, "path": str(path)})
    else:
        console().print(untrusted(f"frozen as {frozen}; digest list: {path}"), soft_wrap=True)
