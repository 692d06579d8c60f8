"""Progress on standard error: a bar on a terminal, a line every ten seconds at most elsewhere.

With --quiet and --json there is none: the callers say so.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from checks.check import Progress as Report
from checks.check import silent
from plumbline_mcp.cli.screen import console, untrusted

_SECONDS_BETWEEN_LINES = 10.0
_LINE = 160
"""Characters of a message where there is no terminal."""
_MOST = 500
"""Characters of a message that are looked at."""
_BESIDE = 40
"""Columns that spinner, bar, count and time take on a terminal."""
_FEWEST = 20
_SHOWN: list[Progress] = []
"""The bar that is on the terminal now."""


@contextmanager
def shown_progress(what: str, quiet: bool) -> Iterator[Report]:
    """A progress callable that shows itself for as long as the block runs."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bar(what) as report:
            yield report
    else:
        yield _lines(what)


@contextmanager
def paused() -> Iterator[None]:
    """Make room on the terminal, for a question or a line that stays; the bar comes back afterwards."""
    shown = list(_SHOWN)
    for progress in shown:
        progress.stop()
    try:
        yield
    finally:
        for progress in shown:
            progress.start()


@contextmanager
def _bar(what: str) -> Iterator[Report]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task(what, total=None)
        room = max(progress.console.width - _BESIDE, _FEWEST)

        def report(done: float, total: float | None, message: str) -> None:
            said = told(what, message, done, total, room)
            whole = None if total is None else int(total)
            progress.update(task, completed=int(done), total=whole, description=said)

        _SHOWN.append(progress)
        try:
            yield report
        finally:
            _SHOWN.remove(progress)


def _lines(what: str) -> Report:
    last = time.monotonic()

    def report(done: float, total: float | None, message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        amount = f"{done:.0f}" if total is None else f"{done:.0f}/{total:.0f}"
        sys.stderr.write(f"{told(what, message, done, total, _LINE)} {amount}\n")
        sys.stderr.flush()

    return report


def told(what: str, message: str, done: float, total: float | None, room: int) -> str:
    """What is being done, in so many characters: of a long message its beginning and its end."""
    if total and done >= total:
        message = "finishing"  # the work goes on after the last thing that it counts
    message = untrusted(message[:_MOST], limit=10 * _MOST).plain  # a character becomes at most ten
    whole = f"{what}: {message}" if message else what
    if len(whole) <= room:
        return whole
    text = message or what
    if len(text) <= room:
        return text
    begin = room // 3
    return f"{text[:begin]}…{text[begin + 1 - room :]}"
