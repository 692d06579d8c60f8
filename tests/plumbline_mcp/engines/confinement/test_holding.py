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
from plumbline_mcp.engines.confinement.reach import Reach
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
    "see where another process is": lambda: os.readlink("/proc/VICTIM/cwd"),
    "map another process": lambda: pathlib.Path("/proc/VICTIM/maps").read_bytes(),
    "read another process's memory": lambda: open("/proc/VICTIM/mem", "rb").close(),
    "signal another process": lambda: os.kill(VICTIM, signal.SIGTERM),
}
found = {name: tried(action) for name, action in attempts.items()}
pathlib.Path(output, "found.json").write_text(json.dumps(found))
for name in ("records", "logs", "output", "scratch/tmp"):
    (run / name / "written").write_text("x")
    (run / name / "written").unlink()
for name in ("status", "maps", "stat", "environ", "smaps", "task", "fd", "cgroup", "mounts"):
    own = pathlib.Path("/proc/self", name)
    assert os.listdir(own) if own.is_dir() else own.read_bytes(), name
held = [line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if "Cap" in line[:3]]
rights = {line.split()[0]: int(line.split()[1], 16) for line in held}
assert not any(rights[name] for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")), rights
assert "NoNewPrivs:\\t1" in pathlib.Path("/proc/self/status").read_text()
import importlib.util
if importlib.util.find_spec("psutil"):
    import psutil
    assert psutil.Process().memory_info().rss > 0 and psutil.Process().memory_maps() is not None
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
        "truncate outside": "FileNotFoundError",  # it was removed before
    }
    assert victim.wait(10) == -signal.SIGTERM
    assert folder.job.confinement == "none"


def test_two_ranks_and_their_data_workers_reach_each_other_inside(place: Path) -> None:
    """Under landlock: the contract of all engines, which take the first confinement that works."""
    if not available(kind := "bubblewrap"):
        pytest.skip(f"{kind} cannot be used here")
    body = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
    assert torch.cat(list(loader)).tolist() == list(range(8))
    dist.destroy_process_group()
    """
    workspace = Workspace.open(place / "home")
    engine = LocalEngine(workspace)
    wanted = launch(place, sys.executable, textwrap.dedent(body), confinement=kind, settings={"ranks": 2})
    run_id = engine.submit(wanted)
    status = until(lambda: (known := engine.status(run_id)).state.over and known, 90)
    assert status.state is State.SUCCEEDED, (workspace.runs / run_id / "logs/rank-00000.err").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights that a held job has not")
@pytest.mark.parametrize("kind", ["landlock", "bubblewrap"])
def test_what_root_reads_only_by_a_capability_is_refused_before_the_job(place: Path, kind: str) -> None:
    if not available(kind):
        pytest.skip(f"{kind} cannot be used here")
    engine = LocalEngine(Workspace.open(place / "home"))
    wanted = launch(place, sys.executable, "", confinement=kind)
    hidden = place / "model/sub/hidden"
    hidden.parent.mkdir()
    hidden.write_text("x")
    hidden.chmod(0o600)
    os.chown(hidden, 1000, 1000)
    with pytest.raises(UsageError, match=f"root has no right to read {hidden} but by a capability"):
        engine.submit(wanted)
    hidden.chmod(0o644)
    hidden.parent.chmod(0o700)
    os.chown(hidden.parent, 1000, 1000)
    with pytest.raises(UsageError, match=f"no right to read {hidden.parent} but by a capability"):
        engine.submit(wanted)
    hidden.parent.chmod(0o755)
    run_id = engine.submit(wanted)
    assert until(lambda: engine.status(run_id).state.over and engine.status(run_id)).state is State.SUCCEEDED


def test_a_job_that_cannot_be_confined_does_not_begin_and_says_why(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that would show the environment of other processes is none: played with a wrong process."""
    if not available("landlock"):
        pytest.skip("landlock cannot be used here")
    monkeypatch.setattr(os, "getpid", lambda: "self")
    apply = landlock.prepared(Reach((Path("/usr"),), (), ()))
    monkeypatch.undo()
    if (pid := os.fork()) == 0:
        try:
            apply()
        except OSError as error:
            os._exit(7 if "environment of a process outside" in str(error) else 8)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


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
