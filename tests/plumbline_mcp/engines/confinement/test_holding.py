"""Each confinement is forced, and a job tries what it must not be able to do; one is really none."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.confinement import another_user, bubblewrap, landlock
from plumbline_mcp.engines.engine import State
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.errors import UsageError
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import until

SYSTEM_PYTHON = Path("/usr/bin/python3")
HELD = ("landlock", "bubblewrap", "uid")

ATTEMPTS = """
import json, os, pathlib, signal
run, place = pathlib.Path(output).parent, pathlib.Path(PLACE)
def tried(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
attempts = {
    "write outside": lambda: (place / "outside").write_text("x"),
    "remove outside": lambda: (place / "kept").unlink(),
    "truncate outside": lambda: os.truncate(place / "kept", 0),
    "read a key": lambda: (place / "user/.ssh/id_test").read_text(),
    "read the configuration": lambda: (place / "user/.config/plumbline/allowed_signers").read_text(),
    "list another home": lambda: os.listdir(place / "user"),
    "read the database": lambda: (run.parent.parent / "plumbline.db").read_bytes(),
    "change the job": lambda: (run / "job.json").write_text("{}"),
    "change a hook": lambda: (run / "hooks/export.py").write_text(""),
    "add a hook": lambda: (run / "hooks/json.py").write_text(""),
    "write a manifest": lambda: (run / "manifest.json").write_text("{}"),
    "move the job": lambda: os.rename(run / "job.json", run / "output/job.json"),
    "look into another process": lambda: pathlib.Path("/proc/VICTIM/environ").read_bytes(),
    "signal another process": lambda: os.kill(VICTIM, signal.SIGTERM),
}
found = {name: tried(action) for name, action in attempts.items()}
pathlib.Path(output, "found.json").write_text(json.dumps(found))
for name in ("records", "logs", "output", "scratch/tmp"):
    (run / name / "written").write_text("x")
    (run / name / "written").unlink()
import tempfile, multiprocessing
tempfile.TemporaryFile().close()
multiprocessing.Lock()
assert (run / "job.json").read_text() and (pathlib.Path(job["inputs"]["model"]) / "weights").read_text()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may pass through, with what a job must not reach; /tmp may be private."""
    folder = Path(tempfile.mkdtemp(prefix="plumbline-held-", dir="/var/tmp"))
    folder.chmod(0o711)
    (folder / "user/.ssh").mkdir(parents=True)
    (folder / "user/.config/plumbline").mkdir(parents=True)
    (folder / "user/.ssh/id_test").write_text("a key")
    (folder / "user/.config/plumbline/allowed_signers").write_text("a signer")
    (folder / "user").chmod(0o700)
    (folder / "kept").write_text("kept")
    (folder / "model").mkdir()
    (folder / "blobs").mkdir()
    (folder / "blobs/weights").write_text("w")
    (folder / "model/weights").symlink_to("../blobs/weights")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of ours that the job must not reach."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def available(kind: str) -> bool:
    if kind == "landlock":
        return landlock.unavailable() is None and landlock.version() >= 6
    if kind == "bubblewrap":
        return bubblewrap.unavailable() is None
    return os.geteuid() == 0 and SYSTEM_PYTHON.exists()


def attempted(place: Path, kind: str, victim: int) -> tuple[RunFolder, dict[str, str]]:
    """The sealed run of a job that tried everything, and what came of it."""
    body = textwrap.dedent(ATTEMPTS).replace("PLACE", repr(str(place))).replace("VICTIM", str(victim))
    workspace = Workspace.open(place / "home")
    engine = LocalEngine(workspace)
    python = str(SYSTEM_PYTHON) if kind == "uid" else sys.executable
    run_id = engine.submit(launch(place, python, body, confinement=kind))
    status = until(lambda: (known := engine.status(run_id)).state.over and known)
    folder = RunFolder.open(workspace.runs / run_id)
    said = (folder.path / "logs/rank-00000.err").read_text() + (folder.path / "logs/launcher.err").read_text()
    assert status.state is State.SUCCEEDED, said
    found: dict[str, str] = json.loads(folder.verified("output/found.json").read_text())
    return folder, found


@pytest.mark.parametrize("kind", HELD)
def test_a_held_job_reaches_only_what_is_its_own(
    place: Path, victim: "subprocess.Popen[bytes]", kind: str
) -> None:
    if not available(kind):
        pytest.skip(f"{kind} cannot be used here")
    folder, found = attempted(place, kind, victim.pid)
    assert {name for name, result in found.items() if result == "done"} == set()
    assert victim.poll() is None
    assert (place / "kept").read_text() == "kept"
    assert not (place / "outside").exists()
    assert folder.job.confinement.startswith(f"{kind} (not held: ")
    assert {path.stat().st_uid for path in folder.path.rglob("*")} == {os.geteuid()}


def test_an_unheld_job_reaches_everything_and_says_so(place: Path, victim: "subprocess.Popen[bytes]") -> None:
    """So that the attempts above are real ones."""
    body = ATTEMPTS.replace("PLACE", repr(str(place))).replace("VICTIM", str(victim.pid))
    harmless = [line for line in body.splitlines() if "run / " not in line or "found" in line]
    workspace = Workspace.open(place / "home")
    engine = LocalEngine(workspace)
    text = "\n".join(line for line in harmless if "assert" not in line and "written" not in line)
    text = text.replace('for name in ("records", "logs", "output", "scratch/tmp"):', "")
    run_id = engine.submit(launch(place, sys.executable, text, confinement="none"))
    until(lambda: engine.status(run_id).state.over)
    folder = RunFolder.open(workspace.runs / run_id)
    found = json.loads((folder.output / "found.json").read_text())
    assert {name: result for name, result in found.items() if result != "done"} == {
        "truncate outside": "FileNotFoundError"  # it was removed before
    }
    assert victim.wait(10) == -signal.SIGTERM
    assert folder.job.confinement == "none"


@pytest.mark.parametrize("kind", ["landlock", "bubblewrap"])
def test_two_ranks_reach_each_other_inside(place: Path, kind: str) -> None:
    if not available(kind):
        pytest.skip(f"{kind} cannot be used here")
    body = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    dist.destroy_process_group()
    """
    workspace = Workspace.open(place / "home")
    engine = LocalEngine(workspace)
    wanted = launch(place, sys.executable, textwrap.dedent(body), confinement=kind, settings={"ranks": 2})
    run_id = engine.submit(wanted)
    status = until(lambda: (known := engine.status(run_id)).state.over and known, 90)
    assert status.state is State.SUCCEEDED, (workspace.runs / run_id / "logs/rank-00000.err").read_text()


def test_what_cannot_hold_is_refused_and_never_replaced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda _: None)
    engine = LocalEngine(Workspace.open(place / "home"))
    with pytest.raises(UsageError, match="bubblewrap: bubblewrap is not installed"):
        engine.submit(launch(place, sys.executable, confinement="bubblewrap"))
    assert engine._workspace.run_count() == 0


def test_the_first_that_works_holds_and_none_says_why_the_others_do_not(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plumbline_mcp.engines.confinement import choosing

    runs, python = place / "home/runs", Path(sys.executable)
    runs.mkdir(parents=True)
    asked: dict[str, Any] = {"runs": runs, "interpreter": python, "inputs": []}
    monkeypatch.setattr(landlock, "unavailable", lambda: "no kernel")
    monkeypatch.setattr(bubblewrap, "unavailable", lambda: None)
    assert choosing.choose("auto", **asked).kind == "bubblewrap"
    monkeypatch.setattr(bubblewrap, "unavailable", lambda: "not there")
    monkeypatch.setattr(another_user, "unavailable", lambda *_: "not root")
    assert str(choosing.choose("auto", **asked)) == (
        "none (landlock: no kernel; bubblewrap: not there; uid: not root)"
    )
