"""Everything but the screen works without the extra, and says how to get it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from approvals.statement import Request
from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.workspace import Workspace
from tests.approvals.reviewers import Reviewer, trusting
from tests.approvals.screen.terminal import Terminal
from tests.plumbline_mcp.cli.launching import environment

ROOT = Path(__file__).resolve().parents[3]
WITHOUT = "import sys; sys.modules['textual'] = None; sys.path.insert(0, {root!r});"
"""Python then takes Textual as not installed."""


def without_textual(program: str) -> list[str]:
    return [sys.executable, "-I", "-c", WITHOUT.format(root=str(ROOT)) + program]


def test_the_core_is_imported_without_textual() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("approvals", "plumbline_mcp/cli", "plumbline_mcp/workspace")
        for path in (ROOT / package).rglob("*.py")
        if path.parent.name != "screen" or path.name == "__init__.py"
    ]
    assert "approvals.screen" in names
    program = f"import importlib; [importlib.import_module(name) for name in {names!r}]"
    done = subprocess.run(without_textual(program), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_but_the_screen_loads_textual() -> None:
    program = "import sys, plumbline_mcp.cli.queue, approvals.screen; print('textual' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_the_queue_is_listed_and_says_how_to_install_the_screen(
    tmp_path: Path, ada: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = trusting(tmp_path / "trust", "solo", ada)
    monkeypatch.setenv(TRUST_VARIABLE, str(trust.folder))
    workspace = Workspace.open(tmp_path / "home")
    ticket = workspace.approvals.request(Request(action="plan", title="a plan", content=1, requester="agent"))
    program = "from plumbline_mcp.cli import main; main(['queue'])"
    variables = environment(workspace.home, PLUMBLINE_TRUST=str(trust.folder), TERM="xterm")
    terminal = Terminal(without_textual(program), variables | {"HOME": os.environ.get("HOME", "/")})
    code, shown = terminal.end()
    assert code == 0
    assert ticket.id in shown
    assert "pip install 'plumbline-mcp[screen]'" in shown
    assert "\x1b[?1049h" not in shown


def test_asked_for_by_name_it_is_refused_in_a_sentence() -> None:
    program = (
        "from approvals.screen import run; from approvals.errors import Refused\n"
        "try: run(None)\n"
        "except Refused as refused: print(refused.message, refused.next_step, sep='|')"
    )
    done = subprocess.run(without_textual(program), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the screen needs Textual|pip install 'plumbline-mcp[screen]'")
