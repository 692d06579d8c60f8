"""``plumbline onboard``: the example scan, on a release that is built on the spot."""

import typer

NAME = "onboard"


def register(app: typer.Typer) -> None:
    """Add the verb."""
