"""``plumbline faults``: the recall corpus, one planted fault an entry."""

import typer

NAME = "faults"


def register(app: typer.Typer) -> None:
    """Add the verb."""
