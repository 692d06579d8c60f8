"""The installed program on real terminals: signing with a passphrase, leaving, failing, and hostile texts."""

import os
import re
import shlex
import signal
import subprocess
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from approvals.statement import Request
from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.workspace import Workspace
from tests.approvals.reviewers import PASSPHRASE, Reviewer, trusting
from tests.approvals.screen.terminal import Terminal
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment
from tests.plumbline_mcp.handmade_verdicts import HOSTILE

CTRL_Y, CTRL_C, ESCAPE, TAB = "\x19", "\x03", "\x1b", "\t"


class Desk:
    """A real workspace, and the trust roots of one reviewer."""

    def __init__(self, folder: Path, ada: Reviewer) -> None:
        self.home, self.trust = folder / "home", trusting(folder / "trust", "solo", ada)
        self.variables = environment(self.home, PLUMBLINE_TRUST=str(self.trust.folder), TERM="xterm-256color")
        self.workspace = Workspace.open(self.home)

    def ask(self, **changed: Any) -> str:
        values: dict[str, Any] = {"action": "plan", "title": "a plan", "content": {"steps": 3}}
        request = Request.model_validate({"requester": "agent"} | values | changed)
        return self.workspace.approvals.request(request).id

    def state(self, ticket: str) -> str:
        return self.workspace.approvals.ticket(ticket).state.value

    def open(self, *arguments: str, **more: str) -> Terminal:
        return Terminal([str(LAUNCHER), "queue", *arguments], self.variables | more)


@pytest.fixture
def desk(tmp_path: Path, ada: Reviewer, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return Desk(tmp_path, ada)


# --- signing ----------------------------------------------------------------------------------------------


class Tmux:
    """One tmux server with one window of 80x24."""

    def __init__(self, socket: Path, command: str, variables: dict[str, str]) -> None:
        self._socket, self._variables = socket, variables
        self._run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command)

    def keys(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def text(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def wait_for(self, text: str) -> str:
        """Poll the window until it shows the text."""
        end = time.monotonic() + 60
        while text not in " ".join((shown := self.shown()).split()):
            assert time.monotonic() < end, f"no {text!r} in\n{shown}"
            time.sleep(0.1)
        return shown

    def shown(self) -> str:
        return self._run("capture-pane", "-p")

    def close(self) -> None:
        self._run("kill-server", check=False)

    def _run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["/usr/bin/tmux", "-S", str(self._socket), *arguments],
            env=self._variables,
            capture_output=True,
            text=True,
            check=check,
        )
        return done.stdout


@pytest.fixture
def tmux(desk: Desk, tmp_path: Path) -> Iterator[Callable[[str], Tmux]]:
    opened: list[Tmux] = []

    def start(command: str) -> Tmux:
        opened.append(Tmux(tmp_path / "s", command, desk.variables))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.skipif(not Path("/usr/bin/tmux").exists(), reason="needs tmux")
def test_a_reviewer_signs_in_tmux_with_the_passphrase(desk: Desk, tmux: Callable[[str], Tmux]) -> None:
    ticket = desk.ask()
    window = tmux(f"{shlex.quote(str(LAUNCHER))} queue; sleep 60")
    window.wait_for("plan: a plan")
    window.keys("Enter")
    window.wait_for("[Summary]")
    window.keys("Tab")
    window.wait_for("[Diff]")
    window.keys("G")
    window.wait_for("the diff was read to its end")
    window.keys("a")
    window.wait_for("ada signs these")
    for phrase, answer in (("wr0ng", "nothing was signed with"), (PASSPHRASE, f"signed: approve {ticket}")):
        window.keys("C-y")
        window.wait_for("Enter passphrase")
        assert desk.state(ticket) == "pending"
        window.text(phrase)
        window.keys("Enter")
        shown = window.wait_for(answer)
        assert phrase not in shown
    window.keys("q")
    window.wait_for(f"signed: {ticket}, approved")
    held = desk.workspace.approvals.verify(ticket)
    assert (held.decisions[0].signer, held.decisions[0].tier) == ("ada", "T1")


def test_ctrl_c_at_the_passphrase_is_no_decision(desk: Desk) -> None:
    ticket = desk.ask()
    terminal = desk.open()
    terminal.wait_for("a plan")
    terminal.press("\r", TAB, "G")
    terminal.type("a")
    terminal.wait_for("ada signs these")
    terminal.type(CTRL_Y)
    terminal.wait_for("Enter passphrase")
    time.sleep(0.5)  # ssh-keygen reads from now on
    terminal.type(CTRL_C)
    code, last = terminal.end()
    assert code == 130
    assert "NO DECISION" in last
    assert desk.state(ticket) == "pending"


# --- leaving and failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["q", CTRL_C, "\x11"], ids=["q", "ctrl+c", "ctrl+q"])
def test_leaving_is_no_decision(desk: Desk, key: str) -> None:
    ticket = desk.ask()
    terminal = desk.open()
    terminal.wait_for("a plan")
    terminal.press("\r", TAB, "G")
    terminal.type(key)
    code, last = terminal.end()
    assert (code, last.rstrip().endswith("NO DECISION")) == (0, True)
    assert "\x1b[?1049l" in last  # the terminal is as it was before
    assert desk.state(ticket) == "pending"


def test_leaving_from_the_dialog_is_no_decision(desk: Desk) -> None:
    ticket = desk.ask()
    terminal = desk.open()
    terminal.wait_for("a plan")
    terminal.press("\r", TAB, "G", "a")
    terminal.type(CTRL_C)
    code, last = terminal.end()
    assert (code, last.rstrip().endswith("NO DECISION"), desk.state(ticket)) == (0, True, "pending")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_is_no_decision(desk: Desk, number: signal.Signals, code: int) -> None:
    ticket = desk.ask()
    terminal = desk.open()
    terminal.wait_for("a plan")
    terminal.press("\r", TAB, "G", "a")
    os.kill(terminal.process, number)
    ended, last = terminal.end()
    assert (ended, "NO DECISION" in last, desk.state(ticket)) == (code, True, "pending")
    assert "\x1b[?1049l" in last


def test_killed_it_decides_nothing(desk: Desk) -> None:
    ticket = desk.ask()
    terminal = desk.open()
    terminal.wait_for("a plan")
    terminal.press("\r", TAB, "G", "a")
    os.kill(terminal.process, signal.SIGKILL)
    terminal.end()
    assert desk.state(ticket) == "pending"


def test_a_crash_is_a_sentence_and_no_decision(desk: Desk) -> None:
    desk.ask(title="\x1b[2Jevil")
    terminal = desk.open()
    terminal.wait_for("evil")
    desk.workspace.approvals.connection.execute("drop table uses")
    code, last = terminal.end()
    assert code == 3
    assert "NO DECISION" in last
    assert "cannot be used: no such table: uses" in " ".join(last.split())
    assert "Traceback" not in last
    assert "\x1b[?1049l" in last


# --- notification -----------------------------------------------------------------------------------------


def test_a_command_is_told_of_new_requests(desk: Desk, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = tmp_path / "tell me"
    script.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" >> {shlex.quote(str(told))}\necho noise\necho noise >&2\n'
    )
    script.chmod(0o755)
    desk.ask(title="was there before")
    terminal = desk.open("--notify", f"{shlex.quote(str(script))} --now 'two words'")
    terminal.wait_for("was there before")
    ticket = desk.ask(title="$(touch x); `id` " + "".join(HOSTILE.values())[:150], content="new")
    terminal.quiet()
    end = time.monotonic() + 30
    while not told.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert "noise" not in terminal.press("q")
    terminal.end()
    first, second, text, rest = told.read_text().split("|")
    assert (first, second, rest) == ("--now", "two words", "")
    assert text.startswith(f"waits for a signature: {ticket} plan: $(touch x); `id` a\\x1b[2J")
    assert text.isprintable()
    assert len(text) < 300


# --- hostile texts ----------------------------------------------------------------------------------------

EVIL = "".join(HOSTILE.values())
_OWN = re.compile(
    r"\x1b\[[0-9;]*[mH]"  # styles, cursor
    r"|\x1b\[\?[0-9]+(?:[hl]|\$p)"  # modes, and which there are
    r"|\x1b\[(?:<|>[0-9]+)u"  # keyboard
    r"|\x1b\]22;[a-z-]+\x07"  # shape of the pointer
)
"""What Textual itself writes. Clearing the screen, the clipboard and titles are not among it."""


def commands_in(text: str) -> list[str]:
    """Characters that a terminal obeys or a reader does not see, besides Textual's own."""
    rest = re.sub(r"[\r\n]", "", _OWN.sub("", text))
    hidden = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return sorted({hex(ord(c)) for c in rest if unicodedata.category(c) in hidden})


def fill(desk: Desk, text: str) -> str:
    """Requests in every list, with the text in every field that takes it."""
    title = text[:200]
    fields: dict[str, Any] = {"title": title, "subjects": {title: "a1" * 32}, "evidence": [title]}
    for number, decision in enumerate(("reject", "approve")):
        ticket = desk.ask(content={text: [text, number]}, **fields)
        statement = desk.workspace.approvals.draft(ticket, decision, "ada", text)
        signature = desk.sign(statement.bytes())  # type: ignore[attr-defined]
        desk.workspace.approvals.record(ticket, statement, signature)
    desk.workspace.approvals.withdraw(desk.ask(content=[text], **fields), "agent", text)
    return desk.ask(content={text: text}, **fields)


def tour(desk: Desk, typescript: Path, **more: str) -> str:
    """Go over every widget under `script`, and what the terminal got."""
    variables = desk.variables | more | {"SHELL": "/bin/sh"}
    notify = shlex.quote(f"/nonexistent/{HOSTILE['markup'].split()[0]}")
    command = f"{shlex.quote(str(LAUNCHER))} queue --notify {notify}"
    terminal = Terminal(
        ["/usr/bin/script", "-qefc", command, str(typescript)], variables | {"SHELL": "/bin/sh"}
    )
    terminal.wait_for("Enter open")
    terminal.press("\r", " ", TAB, " ", " ", " ", " ", " ", "G")
    terminal.press(TAB, " ", TAB, " ", TAB, " ", TAB, " ", "G")
    terminal.press("a", "x", TAB, " ", CTRL_Y)  # the passphrase is asked: wrong
    terminal.press("no\r")
    terminal.press(ESCAPE, "x", CTRL_Y, ESCAPE, ESCAPE, "/", "re", ESCAPE, "?", ESCAPE)
    terminal.press(
        "2", "\r", TAB, " ", " ", ESCAPE, "\x1b[B", "\r", " ", " ", "a", ESCAPE, "3", "\r", " ", " ", "a"
    )
    desk.ask(title="later", content="later")
    terminal.quiet()
    terminal.press("q")
    terminal.end()
    return typescript.read_bytes().decode()


@pytest.fixture
def signing(desk: Desk, ada: Reviewer) -> Desk:
    from approvals.signatures import sign

    desk.sign = lambda data: sign(data, ada.opened, desk.trust.namespace, tty=False)  # type: ignore[attr-defined]
    return desk


def test_no_text_of_others_is_obeyed_by_the_terminal(signing: Desk, tmp_path: Path) -> None:
    fill(signing, EVIL)
    shown = tour(signing, tmp_path / "typescript")
    assert commands_in(shown) == []
    for bad in ("\x1b[2J", "\x1b]52", "\x07", "\x9b", "\u202e", "\U000e0041", "\u200b"):
        assert bad not in _OWN.sub("", shown)
    for seen in (
        r"\x1b[2J",
        r"\u{202e}",
        r"\u{e0041}",
        r"\u001b[2J",
        "[bold red]x[/bold red]",
        "ada signs these",
    ):
        assert seen in shown
    for place in (
        "[Diff]",
        "[Statement]",
        "[Evidence]",
        "[History]",
        "[Raw]",
        "Enter passphrase",
        "REJECT A-",
    ):
        assert place in shown
    assert "cannot be started" in shown
    assert shown.count("nothing was signed") >= 2


def test_the_detector_sees_each_kind_of_attack() -> None:
    seen = {name for name, text in HOSTILE.items() if commands_in(text)}
    assert seen == set(HOSTILE) - {"forged line", "markup", "carriage return"}


def test_a_carriage_return_of_others_is_shown(signing: Desk) -> None:
    """Line ends are the terminal's own, so they are looked for where they would do harm."""
    signing.ask(title="row 3\rall good")
    terminal = signing.open()
    shown = terminal.wait_for("all good")
    terminal.press("q")
    terminal.end()
    assert r"row 3\x0dall good" in shown


def test_with_no_color_there_is_no_colour(desk: Desk) -> None:
    desk.ask()
    shown = []
    for more in ({}, {"NO_COLOR": "1"}):
        terminal = desk.open(**more)
        terminal.wait_for("a plan")
        terminal.press("\r", TAB, "q")
        terminal.end()
        styles = re.findall(r"\x1b\[([0-9;]*)m", terminal.written.decode())
        shown.append(
            {code for style in styles for code in style.split(";") if re.fullmatch("[349][0-7]|[34]8", code)}
        )
    assert "32" in shown[0]
    assert shown[1] == set()


VERBS = {
    "list": ("list",),
    "list as JSON": ("list", "--json"),
    "show": ("show", "ID"),
    "show as JSON": ("show", "ID", "--json"),
    "approve": ("approve", "ID", "--reason", "fine"),
    "approve with a hostile reason": ("approve", "ID", "--reason", EVIL),
    "approve as a hostile name": ("approve", "ID", "--as", EVIL),
    "reject": ("reject", "ID", "--reason", EVIL),
    "record": ("record", "FILE", "FILE"),
    "wait": ("wait", "ID", "--timeout", "0.1"),
    "wait for a hostile id": ("wait", EVIL),
    "notify": ("--notify", f"'{EVIL}"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_lets_a_text_of_others_through(signing: Desk, tmp_path: Path, verb: str) -> None:
    ticket = fill(signing, EVIL)
    (tmp_path / "hostile").write_text(EVIL)
    places = {"ID": ticket, "FILE": str(tmp_path / "hostile")}
    terminal = signing.open(*(places.get(word, word) for word in VERBS[verb]))
    if verb in ("approve", "reject", "approve with a hostile reason"):
        terminal.wait_for("Enter passphrase")
        terminal.type("wrong\n")
    terminal.end()
    written = terminal.written.decode()
    assert len(written) > 20
    assert commands_in(written) == []
    assert "\r" not in re.sub(r"\r(?=\r*\n)", "", written)
    assert signing.state(ticket) == "pending"
