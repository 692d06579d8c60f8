"""`plumbline onboard` on a real terminal and without one: who is asked, and what is refused."""

import os
import pty
import select
import signal
import time
from pathlib import Path

import pytest

from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline

QUESTION = b"approve it with the example's throwaway key? [y/N]: "
ENTRY = """
id = "image-alone"
title = "The environment alone"
mechanism = "none"
pattern = 1
silent = true
source = "built by plumbline"
clean = true
checks = ["image"]
rows = 4

[release]
family = "llama"
quantized = false
"""


def test_without_a_terminal_it_names_the_option(tmp_path: Path) -> None:
    done = plumbline("onboard", home=tmp_path / "home")
    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert "there is no terminal to ask on" in said
    assert "plumbline onboard --sign example, or make onboard SIGN=example" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("onboard", "target.toml", "--sign", "example"), "plumbline key enrol NAME"),
        (("onboard", "--sign", "ada"), "only the example's throwaway key signs here: --sign example"),
    ],
)
def test_the_example_key_signs_for_the_example_alone(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = plumbline(*arguments, home=tmp_path / "home")
    assert done.returncode == 3
    words = "".join(character if character.isprintable() else " " for character in done.stderr)
    assert said in " ".join(words.replace("│", " ").split())
    assert not (tmp_path / "home").exists()


def test_a_real_workspace_is_not_signed_in_with_it(tmp_path: Path) -> None:
    Workspace.open(tmp_path / "home")
    done = plumbline("onboard", "--sign", "example", home=tmp_path / "home")
    assert done.returncode == 3
    assert "is a real one" in done.stderr
    assert not (tmp_path / "home" / "example-trust").exists()


def corpus(tmp_path: Path) -> Path:
    """One entry that plants nothing and takes one step."""
    entries = tmp_path / "corpus" / "entries"
    entries.mkdir(parents=True)
    (entries / "image-alone.toml").write_text(ENTRY)
    return entries.parent


def answered(tmp_path: Path, keys: bytes, limit_s: float) -> tuple[int, str]:
    """Type ``keys`` at each question; the exit code and everything that was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        words = ["onboard", "--plant", "image-alone", "--corpus", str(corpus(tmp_path))]
        variables = environment(tmp_path / "home", TERM="xterm-256color", COLUMNS="100")
        os.execve(LAUNCHER, [str(LAUNCHER), *words], variables)  # noqa: S606 - a pty needs a fork
    shown, asked, deadline = b"", 0, time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        if shown.count(QUESTION) > asked:
            asked += 1
            os.write(terminal, keys)
    else:
        os.kill(child, signal.SIGKILL)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")


@pytest.mark.environment
def test_a_y_on_the_terminal_signs_what_was_shown(tmp_path: Path) -> None:
    code, shown = answered(tmp_path, b"y\n", 300)
    assert code == 0, shown[-2000:]
    assert "to be signed" in shown
    workspace = Workspace.open(tmp_path / "home", kind="example")
    (ticket,) = workspace.approvals.tickets()
    assert ticket.id in shown
    assert [each.signer for each in ticket.decisions] == ["example"]
    assert [run.job.procedure for run in workspace.runs_list()] == ["first_run"]
    assert [run.state for run in workspace.runs_list()] == [RunState.SEALED]


@pytest.mark.environment
@pytest.mark.parametrize(("keys", "code"), [(b"\n", 2), (b"\x03", 130)])
def test_any_other_answer_starts_nothing(tmp_path: Path, keys: bytes, code: int) -> None:
    ended, shown = answered(tmp_path, keys, 120)
    assert ended == code, shown[-2000:]
    workspace = Workspace.open(tmp_path / "home", kind="example")
    assert not workspace.runs_list()
    (ticket,) = workspace.approvals.tickets()
    assert ticket.state.value == ("rejected" if code == 2 else "pending")
