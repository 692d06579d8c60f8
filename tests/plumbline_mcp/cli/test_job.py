"""plumbline job: a detached job is listed, followed, read and ended from other programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline
from tests.plumbline_mcp.engines.small_pack import write_pack
from tests.plumbline_mcp.engines.waiting import gone, said_pid, until

BODY = """
import os, pathlib, time
print("\\x1b[2J begun caf\\u00e9", flush=True)
pathlib.Path(output, "pid.part").write_text(str(os.getpid()))
pathlib.Path(output, "pid.part").rename(output + "/pid")
while not pathlib.Path(output, "go").exists():
    time.sleep(0.05)
print("ended", flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def start(home: Path, *more: str) -> Path:
    """Start the job, detached; its run folder."""
    folder = home.parent
    (folder / "model").mkdir(exist_ok=True)
    sides = ("--framework", str(write_pack(folder / "pack", BODY)), "--model", str(folder / "model"))
    started = plumbline("run", "export", *sides, "--python", sys.executable, "-d", "--json", *more, home=home)
    assert started.returncode == 0, started.stderr
    run = Path(json.loads(started.stdout)["folder"])
    said_pid(run)
    return run


def test_a_detached_job_is_listed_followed_and_waited_for(home: Path) -> None:
    run = start(home)
    (row,) = json.loads(plumbline("job", "list", "--active", "--json", home=home).stdout)
    assert (row["run_id"], row["state"], row["approval"]) == (run.name, "running", "none")
    told = plumbline("job", "logs", run.name, home=home).stdout
    assert told == "\\x1b[2J begun café\n"
    command = [LAUNCHER, "job", "logs", run.name, "--follow", "--offset", "0", "--bytes", "1"]
    following = subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, text=True)
    (run / "output" / "go").touch()
    waited = plumbline("job", "wait", run.name, "--json", "--quiet", home=home)
    assert waited.returncode == 0
    known = json.loads(waited.stdout)
    assert (known["state"], known["exit_code"], known["approval"]) == ("succeeded", 0, "none")
    assert following.communicate(timeout=60)[0] == "\\x1b[2J begun café\nended\n"
    told = plumbline("job", "wait", run.name, "--quiet", home=home).stdout
    assert f"next: plumbline check export --original {home.parent / 'model'} --export {run.name}" in told
    assert plumbline("job", "list", "--active", home=home).stdout == "no job runs now\n"
    page = json.loads(plumbline("job", "logs", run.name, "--offset", "-6", "--json", home=home).stdout)
    assert (page["text"], page["next_offset"], page["size"]) == ("ended\n", page["size"], page["size"])


def test_a_job_is_ended_with_its_reason(home: Path) -> None:
    run = start(home, "--confinement", "none")
    pid = said_pid(run)
    ended = plumbline("job", "cancel", run.name, "--quiet", home=home, COLUMNS="200")
    assert ended.returncode == 0
    assert "cancelled from the command line" in ended.stdout
    assert gone(pid)
    assert Workspace.open(home).run(run.name).state is RunState.SEALED
    assert plumbline("job", "wait", run.name, "--quiet", home=home).returncode == 2
    assert plumbline("job", "cancel", run.name, "--quiet", home=home).returncode == 0
    listed = plumbline("list", "runs", home=home, COLUMNS="200").stdout
    assert "cancelled from the command line" in listed
    assert "cancelled: cancelled" not in listed


def test_to_stop_waiting_does_not_end_the_job(home: Path) -> None:
    run = start(home)
    waiting = subprocess.Popen([LAUNCHER, "job", "wait", run.name, "--quiet"], env=environment(home))
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2)
    waiting.terminate()
    assert waiting.wait(20) == 143
    (row,) = json.loads(plumbline("job", "list", "--json", home=home).stdout)
    assert row["state"] == "running"
    (run / "output" / "go").touch()
    until(lambda: Workspace.open(home).run(run.name).state is RunState.SEALED)


def test_a_killed_client_leaves_its_job_which_is_waited_for_and_sealed_once(home: Path) -> None:
    folder = home.parent
    (folder / "model").mkdir()
    sides = ("--framework", str(write_pack(folder / "pack", BODY)), "--model", str(folder / "model"))
    command = [str(LAUNCHER), "run", "export", *sides, "--python", sys.executable, "--quiet"]
    client = subprocess.Popen(command, env=environment(home))
    run = home / "runs/export-0001"
    said_pid(run)
    client.kill()
    assert client.wait() == -9
    waiting = [
        subprocess.Popen([LAUNCHER, "job", "wait", run.name, "--quiet"], env=environment(home))
        for _ in range(2)
    ]
    (run / "output" / "go").touch()
    assert [one.wait(120) for one in waiting] == [0, 0]
    events = [one.event for one in Workspace.open(home).audit.entries() if one.subject == run.name]
    assert events == ["run_submitted", "run_started", "run_sealed"]


def test_an_unknown_job_and_a_workspace_that_is_not_there_are_named(home: Path) -> None:
    missing = plumbline("job", "status", "load-0001", home=home)
    assert missing.returncode == 3
    assert "there is no workspace" in missing.stderr
    Workspace.open(home)
    for verb in ("status", "wait", "cancel", "logs"):
        unknown = plumbline("job", verb, "load-0001", home=home)
        assert unknown.returncode == 3
        assert "there is no run 'load-0001'" in unknown.stderr
