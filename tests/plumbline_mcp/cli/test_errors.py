"""Errors are one sentence with the value met and the next step; the exit code says what kind it was."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from checks.errors import BadInput, Inconclusive
from plumbline_mcp.cli import program
from plumbline_mcp.cli.options import ExitCode
from plumbline_mcp.errors import WorkspaceError
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline

USAGE_ERRORS = {
    "unknown verb": (["chek"], "'chek'", "'check'"),
    "unknown option": (["list", "--lmit", "3"], "--lmit", "--limit"),
    "unknown check": (["check", "dta"], "'dta'", "plumbline check --help"),
    "unknown kind": (["list", "verdict"], "'verdict'", "'verdicts'"),
    "out of range": (["list", "--limit", "0"], "0", "plumbline list --help"),
    "missing argument": (["show"], "'ID'", "plumbline show --help"),
    "unknown verdict": (["show", "data-9999"], "'data-9999'", "data-0001"),
    "port without http": (["serve", "--port", "80"], "--port", "plumbline serve --help"),
    "no corpus": (["faults", "list", "--corpus", "nowhere"], "nowhere", "--corpus"),
}


@pytest.mark.parametrize("case", USAGE_ERRORS)
def test_usage_errors_name_the_value_and_the_next_step(case: str, filled: Path) -> None:
    arguments, met, hint = USAGE_ERRORS[case]
    ended = plumbline(*arguments, home=filled)
    assert ended.returncode == ExitCode.USAGE
    assert ended.stdout == ""
    assert ended.stderr.startswith("plumbline: ")
    assert met in ended.stderr
    assert hint in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 2
    assert "Traceback" not in ended.stderr


def test_an_option_without_its_value_names_the_help_of_its_verb(filled: Path) -> None:
    ended = plumbline("check", "data", "--rows", home=filled)
    assert ended.returncode == ExitCode.USAGE
    assert "'--rows' requires an argument" in ended.stderr
    assert "next: plumbline check data --help" in ended.stderr


@pytest.mark.parametrize("case", [case for case in USAGE_ERRORS if case != "port without http"])
def test_errors_are_json_where_json_was_asked_for(case: str, filled: Path) -> None:
    arguments, met, _ = USAGE_ERRORS[case]
    ended = plumbline(*arguments, "--json", home=filled)
    told = json.loads(ended.stdout)
    assert ended.returncode == told["exit_code"] == ExitCode.USAGE
    assert met in told["error"]
    assert told["next_step"]


def test_no_workspace_is_a_usage_error_and_makes_none(tmp_path: Path) -> None:
    ended = plumbline("show", "data-0001", home=tmp_path / "home")
    assert ended.returncode == ExitCode.USAGE
    assert "there is no workspace" in ended.stderr
    assert not (tmp_path / "home").exists()


def test_an_unwritable_home_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ended = plumbline("onboard", home=tmp_path / "file" / "home", cwd=tmp_path)
    assert ended.returncode == ExitCode.USAGE
    assert "cannot make the workspace" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (BadInput("no such file: x", "name another"), 3, "no such file: x"),
        (Inconclusive("the manifest changed"), 2, "the manifest changed"),
        (WorkspaceError("disk full"), 3, "disk full"),
        (OSError(28, "No space left on device", "/x"), 3, "/x: No space left on device"),
        (ZeroDivisionError("division by zero"), 3, "plumbline: crashed: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "stopped; nothing half-written"),
    ],
)
def test_whatever_happens_becomes_a_sentence(
    raised: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise raised

    assert program._guarded(fail, []) == code
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_reader_that_goes_away_is_met_with_silence(filled: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        ended = subprocess.run(
            [LAUNCHER, "list", "--json"],
            env=environment(filled),
            cwd=filled,
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert ended.stderr == b""
    assert ended.returncode == ExitCode.BROKEN_PIPE


def test_ctrl_c_stops_the_server_without_a_trace(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [LAUNCHER, "serve", "--http"],
        env=environment(tmp_path / "home"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        said = server.stderr.readline()
        assert "127.0.0.1" in said
        while server.stderr.readline().rstrip() != "}":
            pass
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=30)[1]
    finally:
        server.kill()
    assert "Traceback" not in rest
    assert server.returncode in (ExitCode.PASS, ExitCode.INTERRUPTED)
