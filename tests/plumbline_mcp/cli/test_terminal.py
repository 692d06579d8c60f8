"""What a record says never reaches the terminal as a command: looked at on a raw pseudo-terminal."""

import io
import os
import pty
import re
import sys
import unicodedata
from pathlib import Path

import pytest

from plumbline_mcp.cli import main
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline
from tests.plumbline_mcp.handmade_verdicts import HOSTILE

_OUR_OWN = re.compile(
    r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\x1b\[2K|\r(?=\n|\x1b\[(2K|1A|\?25))|\n"
)
"""Colours, and what a progress bar needs."""

_NOT_SHOWN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def on_terminal(*arguments: str, home: Path, **more: str) -> str:
    """Everything that the program writes to its terminal, byte for byte."""
    child, descriptor = pty.fork()
    if child == 0:
        os.chdir(home.parent)
        variables = environment(home, TERM="xterm-256color", COLUMNS="100", **more)
        os.execve(LAUNCHER, [str(LAUNCHER), *arguments], variables)  # noqa: S606 - a pty needs a fork
    written = b""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            break
        if not piece:
            break
        written += piece
    os.waitpid(child, 0)
    os.close(descriptor)
    return written.decode()


def commands_in(text: str) -> list[str]:
    """Characters that a terminal obeys or a reader does not see."""
    rest = _OUR_OWN.sub("", text)
    return [
        hex(ord(c)) for c in rest if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "data-0001"),
        ("show", "data-0001", "--json"),
        ("list",),
        ("list", "--json"),
        ("report", "--output", "".join(("r", HOSTILE["bidi override"], HOSTILE["tag characters"]))),
        ("show", HOSTILE["clear screen"] + HOSTILE["clipboard"] + HOSTILE["8-bit CSI"]),
        ("show", HOSTILE["bidi override"], "--json"),
        (HOSTILE["clear screen"],),
        ("list", "--check", HOSTILE["carriage return"]),
        ("reevaluate",),
    ],
    ids=lambda arguments: ascii(" ".join(arguments))[:40],
)
def test_no_control_character_reaches_the_terminal(arguments: tuple[str, ...], hostile: Path) -> None:
    written = on_terminal(*arguments, home=hostile)
    assert written.strip()
    assert commands_in(written) == []


def test_the_detector_sees_each_kind_of_attack() -> None:
    seen = {name for name, text in HOSTILE.items() if commands_in(text)}
    assert seen == set(HOSTILE) - {"forged line", "markup"}


def test_what_was_there_is_shown_escaped_and_not_eaten(hostile: Path) -> None:
    shown = plumbline("show", "data-0001", home=hostile, COLUMNS="2000").stdout
    for text in (r"\x1b[2J", r"\x1b]52;c", r"\x0d", r"\x9b2J", r"\u{202e}", r"\u{e0041}", r"\u{200b}"):
        assert text in shown
    assert "[bold red]x[/bold red]" in shown


def test_a_record_cannot_forge_a_line(hostile: Path) -> None:
    shown = plumbline("show", "data-0001", home=hostile, COLUMNS="2000").stdout
    assert r"x\x0a✓ pass" in shown
    assert not [line for line in shown.splitlines() if line.lstrip().startswith("✓ pass")]


def test_no_color_is_honoured(filled: Path) -> None:
    assert "\x1b[1;31m" in on_terminal("show", "data-0001", home=filled)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", on_terminal("show", "data-0001", home=filled, NO_COLOR="1"))


def test_a_pipe_gets_no_escape_at_all(filled: Path) -> None:
    assert "\x1b" not in plumbline("show", "data-0001", home=filled).stdout


def test_a_terminal_without_utf_8_is_no_reason_to_crash(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit) as ended:
        main(["list", "--home", str(filled)])
    shown = terminal.buffer.getvalue().decode("latin-1")
    assert ended.value.code == 0
    assert "data-0001" in shown
    assert r"\u2717 fail" in shown
