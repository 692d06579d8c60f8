"""Real checks through the program: exit codes, JSON, progress, Ctrl-C."""

import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from checks.verdict import Outcome
from plumbline_mcp.cli import progress
from plumbline_mcp.cli.options import exit_code
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline
from tests.plumbline_mcp.cli.test_terminal import on_terminal


def weights(folder: Path, values: bytes) -> Path:
    """A release of one float tensor and nothing else."""
    folder.mkdir(exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def released(tmp_path: Path) -> Path:
    weights(tmp_path / "exported", bytes(8))
    weights(tmp_path / "changed", bytes([0, 0, 128, 63] * 2))
    return weights(tmp_path / "released", bytes(8))


@pytest.mark.parametrize(
    ("outcome", "code"), list(zip(Outcome, (0, 1, 2, 2), strict=True)), ids=list(Outcome)
)
def test_exit_code_of_each_outcome(outcome: Outcome, code: int) -> None:
    assert exit_code(outcome) == code


def test_a_check_prints_its_verdict_and_stores_it(released: Path) -> None:
    home = released.parent / "home"
    ended = plumbline("check", "export", "--original", "released", "--export", "changed", home=home)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("✗ fail  export  values: ")
    assert "tensor w" in ended.stdout
    assert "stored as export-0001" in ended.stdout
    stored = Workspace.open(home).verdict("export-0001")
    assert stored.verdict.outcome is Outcome.FAIL
    assert stored.inputs["export"] == str(released.parent / "changed")


def test_json_is_the_stored_verdict_and_nothing_else(released: Path) -> None:
    home = released.parent / "home"
    asked = ("check", "export", "--original", "released", "--export", "exported", "--json")
    ended = plumbline(*asked, home=home)
    verdict = json.loads(ended.stdout)
    assert ended.returncode == 2  # nothing but weights: config and reload cannot be judged
    assert verdict["outcome"] == "not_evaluated"
    assert verdict == Workspace.open(home).verdict("export-0001").verdict.model_dump(mode="json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "--original", "released", "--export", "nowhere"], "nowhere"),
        (["export", "--original", "released"], "--export"),
        (["data", "--model", "released", "--workload", "w.jsonl", "--rows", "nowhere"], "nowhere"),
        (["image", "--python", "/nowhere/python", "--framework", "transformers"], "/nowhere/python"),
        (["data", "--model", "m", "--workload", "w", "--rows", "r", "--columns", "x"], "--columns"),
    ],
)
def test_unusable_input_is_a_sentence_and_stores_nothing(
    arguments: list[str], said: str, released: Path
) -> None:
    home = released.parent / "home"
    ended = plumbline("check", *arguments, home=home)
    assert ended.returncode == 3
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert not home.exists() or Workspace.open(home).verdicts() == []


def test_a_time_limit_makes_it_inconclusive(released: Path) -> None:
    asked = ("check", "export", "--original", "released", "--export", "exported", "--time-limit", "1")
    ended = plumbline(*asked, "--json", home=released.parent / "home", PYTHONDONTWRITEBYTECODE="1")
    verdict = json.loads(ended.stdout)
    assert ended.returncode == 2
    assert verdict["outcome"] in ("inconclusive", "not_evaluated")  # a fast machine is done in a second


def test_ctrl_c_ends_the_worker_and_leaves_nothing_half_written(released: Path) -> None:
    home = released.parent / "home"
    program = subprocess.Popen(
        [LAUNCHER, "check", "export", "--original", "released", "--export", "exported"],
        cwd=released.parent,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        worker = wait_for_worker(program.pid)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    finally:
        program.kill()
    assert (program.returncode, out) == (130, "")
    assert err.startswith("plumbline: stopped; nothing half-written")
    assert not Path(f"/proc/{worker}").exists()
    workspace = Workspace.open(home)
    assert workspace.verdicts() == []
    assert workspace.verify() == []


def wait_for_worker(parent: int) -> int:
    """The process id of the worker that a running program has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    for _ in range(600):
        for child in children.read_text().split():
            if b"plumbline_mcp.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def test_a_terminal_gets_a_bar_that_goes_away(released: Path) -> None:
    asked = ("check", "export", "--original", "released", "--export", "exported")
    written = on_terminal(*asked, home=released.parent / "home")
    bar, _, verdict = written.partition("– not evaluated")
    assert "check export" in bar
    assert bar.count("\x1b[?25l") == bar.count("\x1b[?25h") == 1
    assert "stored as export-0001" in verdict


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_a_terminal_gets_no_bar_beside_json_or_when_it_has_to_be_quiet(released: Path, option: str) -> None:
    asked = ("check", "export", "--original", "released", "--export", "exported", option)
    assert "\x1b[?25l" not in on_terminal(*asked, home=released.parent / "home")


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with progress.shown_progress("check data", quiet=True) as report:
        report(1, 10, "rows")
    assert capsys.readouterr() == ("", "")


def test_a_line_every_few_seconds_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter((0.0, 1.0, 11.0, 20.0, 22.0))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress.shown_progress("check data", quiet=False) as report:
        report(1, 10, "rows")
        report(6, 10, "rows")
        report(7, 10, "rows")
        report(12, None, "evil \x1b[2J\nline")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["check data: rows 6/10", r"check data: evil \x1b[2J\x0aline 12"]


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    step = "running the framework's rows procedure: epoch 2: rows as they enter the model"
    said = progress.told("onboard", step, 4, 7, 40)
    assert len(said) == 40
    assert said.startswith("running the f")
    assert said.endswith("rows as they enter the model"[-26:])
    assert progress.told("onboard", step, 4, 7, 160) == f"onboard: {step}"
    long = (
        "Requirement already satisfied: numpy in /somewhere/"
        + "x/" * 100
        + "site-packages (from transformers)"
    )
    line = progress.told("onboard", long, 1, 7, 160)
    assert len(line) == 160
    assert "clipped" not in line
    assert line.startswith("Requirement already satisfied: numpy")
    assert line.endswith("(from transformers)")


def test_a_full_bar_says_that_the_work_goes_on() -> None:
    assert progress.told("check export", "comparing lm_head.weight", 10, 10, 80) == "check export: finishing"
    assert progress.told("check export", "reading headers", 0, None, 80) == "check export: reading headers"
