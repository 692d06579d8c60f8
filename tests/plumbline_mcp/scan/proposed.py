"""Texts of proposed checks: an honest one, and the frame of hostile ones."""

HONEST = '''
"""Counts the lines of a file."""
from pathlib import Path

from checks.check import Check, Context, InjectedFault, Inputs
from checks.verdict import Outcome, Place, Problem, part_of


TOLD = {"framework": "mine"}


class LinesInputs(Inputs):
    file: Path
    folder: Path | None = None


def _plant(case):
    return case + [""]


class Lines(Check):
    name = "lines"
    title = "Lines"
    question = "Is no line empty?"
    reference = "the file itself"
    rule = "no empty line"
    training = "none"
    records = ("a text file",)
    example = "-"
    order = 99
    inputs = LinesInputs
    faults = (InjectedFault("an empty line", "lines", "empty-line", _plant),)

    def open(self, inputs, progress):
        return Path(inputs.file).read_text().splitlines()

    def context(self, inputs, case):
        return Context(run_id="data-0001", confinement="none at all", target=TOLD)

    def judge(self, case, progress):
        empty = [
            Problem(code="empty-line", message="an empty line", place=Place(row=number))
            for number, line in enumerate(case)
            if not line
        ]
        return [part_of("lines", empty)]

    def smallest(self, case):
        return case[:1]


CHECK = Lines()
'''


def hostile(body: str) -> str:
    """The honest check, which first does ``body``; what that notes in ``TOLD`` is the verdict's target."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return HONEST.replace(
        "        return Path(inputs.file)",
        f"        import ctypes, os, socket, subprocess, sys, threading, time\n{lines}\n"
        "        return Path(inputs.file)",
    )


def attempts(**statements: str) -> str:
    """Try each statement and note ``done``, or the name of what it raised."""
    tried = "\n".join(
        f"try:\n    {statement}\n    TOLD[{name!r}] = 'done'\n"
        f"except BaseException as error:\n    TOLD[{name!r}] = type(error).__name__"
        for name, statement in statements.items()
    )
    return hostile(tried)
