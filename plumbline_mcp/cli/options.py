"""The options that every verb shares, and the exit codes."""

import re
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # pydantic takes a quarter of a second: help must not wait for it
    from checks.verdict import Outcome


class ExitCode(IntEnum):
    """What the program tells its caller; ``make`` turns every non-zero into 2."""

    PASS = 0
    FAIL = 1
    COULD_NOT_JUDGE = 2
    USAGE = 3
    HUNG_UP = 129
    """The terminal was closed, as shells count it: 128 + SIGHUP."""
    INTERRUPTED = 130
    """Ctrl-C, as shells count it: 128 + SIGINT."""
    BROKEN_PIPE = 141
    """The reader of our output went away, as shells count it: 128 + SIGPIPE."""
    TERMINATED = 143
    """Told to end, as shells count it: 128 + SIGTERM."""


EXIT_CODES = "Exit codes: 0 pass, 1 a check failed, 2 could not judge, 3 usage error or crash."


def exit_code(outcome: "Outcome") -> ExitCode:
    """The exit code of an outcome."""
    return {"pass": ExitCode.PASS, "fail": ExitCode.FAIL}.get(outcome.value, ExitCode.COULD_NOT_JUDGE)


def paragraphs(text: str | None) -> str:
    """A docstring as help: paragraphs stay, lines inside one are joined, so that a terminal can fold them."""
    blocks = re.split(r"\n\s*\n", (text or "").strip())
    return "\n\n".join(" ".join(block.split()) for block in blocks)


FLAG = ""
"""The metavar of a flag: it takes no value."""

Json = Annotated[
    bool, typer.Option("--json", metavar=FLAG, help="Print the result as JSON on standard output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", metavar=FLAG, help="No progress.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home", metavar="FOLDER", envvar="PLUMBLINE_HOME", help="The workspace; ./.plumbline by default."
    ),
]
