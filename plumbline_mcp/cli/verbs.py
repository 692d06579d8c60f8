"""Verbs that belong together below one word, as `plumbline queue list` and `plumbline queue show`."""

from collections.abc import Callable, Iterable
from typing import Any

import typer

from plumbline_mcp.cli.options import paragraphs


def add_group(
    app: typer.Typer,
    name: str,
    text: str,
    short: str,
    verbs: Iterable[tuple[str, Callable[..., Any], str]],
    callback: Callable[..., Any] | None = None,
) -> None:
    """Add the word ``name`` with its verbs, each a name, its function (its docstring is the help) and a line.

    ``callback`` is what the word does with no verb behind it.
    """
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    for verb, function, line in verbs:
        group.command(verb, help=paragraphs(function.__doc__), short_help=line)(function)
    if callback is not None:
        group.callback(invoke_without_command=True)(callback)
    app.add_typer(group, name=name, help=paragraphs(text), short_help=short)
