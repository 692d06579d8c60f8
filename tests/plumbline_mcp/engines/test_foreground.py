"""The foreground engine: what a job sees, how it ends, and that a run is sealed or gone."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines import foreground, launching
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.processes import marked
from plumbline_mcp.engines.local.sweeping import sweep
from plumbline_mcp.errors import BuildError
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.small_pack import launch, write_pack
from tests.plumbline_mcp.engines.waiting import WAITING, gone, said_pid, until

PYTHON = sys.executable


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home")


def run(workspace: Workspace, wanted: Launch, said: list[str] | None = None) -> RunFolder:
    def progress(done: float, total: float | None, message: str) -> None:
        if said is not None:
            said.append(message)

    return anyio.run(foreground.run, workspace, wanted, progress)


def test_rows_are_recorded_and_every_file_is_sealed(workspace: Workspace, tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack")
    (tmp_path / "model").mkdir()
    (tmp_path / "workload.jsonl").write_text("{}\n")
    inputs = {"model": tmp_path / "model", "workload": tmp_path / "workload.jsonl"}
    folder = run(workspace, Launch(framework=str(pack), procedure="rows", interpreter=PYTHON, inputs=inputs))
    on_disk = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    assert set(folder.manifest) == on_disk - {"manifest.json"}
    assert {f"records/rank-00000/rows-{epoch}-000.safetensors" for epoch in (1, 2)} < on_disk
    for name, (digest, size) in folder.manifest.items():
        content = (folder.path / name).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, size)
    assert folder.exits()[0].clean
    stored = workspace.run(folder.job.run_id)
    assert stored.state is RunState.SEALED
    assert stored.manifest_sha256 == hashlib.sha256((folder.path / "manifest.json").read_bytes()).hexdigest()
    assert workspace.verify() == []
    record = json.loads((folder.path / "records/rank-00000/environment.json").read_text())
    assert record["stand_ins"] == ["nothing stood in"]


def test_what_is_sealed_names_what_ran_by_content(workspace: Workspace, tmp_path: Path) -> None:
    folder = run(workspace, launch(tmp_path, PYTHON))
    for name in (
        "job.sh",
        "hooks/export.py",
        "hooks/binding/export.py",
        "hooks/plumbline_recorder/progress.py",
    ):
        assert folder.job.digests[name] == folder.manifest[name][0]
    assert not list(folder.path.glob("hooks/**/*.pyc"))
    assert folder.job.settings == {"size": 2}
    assert (folder.job.approval, folder.job.engine) == ("none", "local")
    assert not (folder.path / "scratch").exists()


def test_a_job_sees_only_allow_listed_variables(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.setenv("PYTHONPATH", str(hostile))
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.chdir(hostile)
    body = (
        "import json, os, pathlib\npathlib.Path(output, 'seen.json').write_text(json.dumps(dict(os.environ)))"
    )
    folder = run(workspace, launch(tmp_path, PYTHON, body))
    seen = json.loads((folder.output / "seen.json").read_text())
    assert set(seen) - {"OMP_NUM_THREADS", "LD_LIBRARY_PATH", "PWD", "SHLVL", "_", "LC_CTYPE"} == {
        "PATH",
        "PLUMBLINE_RUN",
        "HOME",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
        "TOKENIZERS_PARALLELISM",
        "CUDA_VISIBLE_DEVICES",
        "LANG",
        "TZ",
    }
    assert seen["HOME"].startswith(str(folder.path / "scratch"))


def test_plants_are_imported_before_the_binding_in_their_order(workspace: Workspace, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"plant{number}.py").write_text(
            f"import json\njson.planted = getattr(json, 'planted', []) + [{number}]\n"
        )
    body = "import json, pathlib\npathlib.Path(output, 'planted').write_text(str(json.planted))"
    wanted = launch(tmp_path, PYTHON, body, plants=(tmp_path / "plant2.py", tmp_path / "plant1.py"))
    folder = run(workspace, wanted)
    assert (folder.output / "planted").read_text() == "[2, 1]"
    assert folder.job.plants == ("hooks/plants/00_plant2.py", "hooks/plants/01_plant1.py")


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        ("raise ValueError('the framework broke')", 1, None),
        ("import os\nos._exit(7)", 7, None),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", None, signal.SIGSEGV),
    ],
)
def test_a_job_that_crashes_is_sealed_and_its_exit_file_says_how(
    workspace: Workspace, tmp_path: Path, body: str, code: int | None, number: int | None
) -> None:
    folder = run(workspace, launch(tmp_path, PYTHON, body))
    ended = folder.exits()[0]
    assert (ended.code, ended.signal, ended.timed_out) == (code, number, False)
    if code == 1:
        assert "the framework broke" in (folder.path / "logs/rank-00000.err").read_text()


def test_a_job_over_its_time_is_ended_with_its_children(workspace: Workspace, tmp_path: Path) -> None:
    body = """
    import pathlib, subprocess, time
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path(output, "pid").write_text(str(child.pid))
    time.sleep(600)
    """
    folder = run(workspace, launch(tmp_path, PYTHON, textwrap.dedent(body), time_limit_s=1.5))
    ended = folder.exits()[0]
    assert ended.timed_out
    assert ended.signal == signal.SIGTERM
    assert gone(int((folder.output / "pid").read_text()))


def test_a_process_that_left_the_session_is_ended_before_the_run_is_sealed(
    workspace: Workspace, tmp_path: Path
) -> None:
    body = """
    import pathlib, subprocess
    loop = "trap '' TERM; while true; do echo more >> %s/late; sleep 0.05; done" % output
    child = subprocess.Popen(["setsid", "bash", "-c", loop])
    pathlib.Path(output, "pid").write_text(str(child.pid))
    """
    folder = run(workspace, launch(tmp_path, PYTHON, textwrap.dedent(body)))
    assert folder.exits()[0].clean
    assert gone(int((folder.output / "pid").read_text()))
    folder.verified("output/late")
    time.sleep(0.3)
    folder.verified("output/late")
    assert "SIGKILL" in (folder.path / "logs/supervisor.log").read_text()


def test_links_and_special_files_are_named_and_not_sealed(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("a secret")
    body = f"""
    import os
    os.symlink("{tmp_path}/private", output + "/link")
    os.symlink("{tmp_path}", output + "/folder")
    os.mkfifo(output + "/pipe")
    """
    folder = run(workspace, launch(tmp_path, PYTHON, textwrap.dedent(body)))
    assert folder.files("output/") == []
    manifest = json.loads((folder.path / "manifest.json").read_text())
    assert manifest["not_sealed"] == ["output/folder", "output/link", "output/pipe"]


def test_progress_of_a_job_is_passed_on_without_control_characters(
    workspace: Workspace, tmp_path: Path
) -> None:
    body = "import time\nprogress(1, 2, 'half \\x1b[2J way')\ntime.sleep(0.6)"
    said: list[str] = []
    run(workspace, launch(tmp_path, PYTHON, body), said)
    assert "half ?[2J way" in said


def test_a_progress_file_of_nonsense_is_ignored(workspace: Workspace, tmp_path: Path) -> None:
    body = """
    import pathlib, time
    path = pathlib.Path(output).parent / "logs" / "progress.jsonl"
    path.write_bytes(b"[1, 2]\\n" + b"[" * 100000 + b"\\n" + b"\\xff\\n" + b"x" * 200000 + b"\\n")
    time.sleep(0.6)
    """
    assert run(workspace, launch(tmp_path, PYTHON, textwrap.dedent(body))).exits()[0].clean


Background = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def in_the_background(tmp_path: Path) -> Iterator[Background]:
    """Starts a program of its own that runs a small pack's export with this body."""
    started: list[subprocess.Popen[bytes]] = []

    def start(body: str) -> "subprocess.Popen[bytes]":
        program = f"""
        import anyio, signal
        from pathlib import Path
        from plumbline_mcp.engines import foreground
        from plumbline_mcp.workspace import Workspace
        from tests.plumbline_mcp.engines.small_pack import launch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
        workspace = Workspace.open(Path({str(tmp_path / "home")!r}))
        anyio.run(foreground.run, workspace, launch(Path({str(tmp_path)!r}), {PYTHON!r}, {body!r}))
        """
        command = [PYTHON, "-c", textwrap.dedent(program)]
        root = Path(__file__).resolve().parents[3]
        started.append(subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        program.wait()


def test_ctrl_c_ends_the_job_and_removes_the_run(in_the_background: Background, tmp_path: Path) -> None:
    program = in_the_background(WAITING)
    pid = said_pid(tmp_path / "home/runs/export-0001")
    program.send_signal(signal.SIGINT)
    assert program.wait(20) != 0
    assert gone(pid)
    workspace = Workspace.open(tmp_path / "home")
    assert list(workspace.runs.iterdir()) == []
    stored = workspace.run("export-0001")
    assert (stored.state, stored.reason) == (RunState.REMOVED, "cancelled by the program that ran it")


def test_a_cancellation_that_comes_while_the_job_is_submitted_cancels_the_job(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C cancels the task itself, not a scope of anyio, and may do so before the run's id is known."""
    begun, submit = threading.Event(), LocalEngine.submit

    def slow(engine: LocalEngine, wanted: Launch) -> str:
        begun.set()
        time.sleep(0.3)
        return submit(engine, wanted)

    async def cancelled() -> None:
        task = asyncio.ensure_future(
            foreground.run(workspace, launch(tmp_path, PYTHON, f"{WAITING}\n"), lambda *_: None)
        )
        while not begun.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(LocalEngine, "submit", slow)
    asyncio.run(cancelled())
    (run,) = workspace.runs_list()
    assert run.state is RunState.REMOVED
    assert not (workspace.runs / run.run_id).exists()
    assert list(marked(workspace.runs / run.run_id)) == []


def test_a_job_goes_on_when_the_program_that_follows_it_is_killed(
    in_the_background: Background, tmp_path: Path
) -> None:
    body = "import pathlib, time\nwhile not pathlib.Path(output, 'go').exists(): time.sleep(0.05)"
    program = in_the_background(body)
    output = tmp_path / "home/runs/export-0001/output"
    until((output.parent / "logs/rank-00000.out").exists)
    program.kill()
    program.wait()
    workspace = Workspace.open(tmp_path / "home")
    assert sweep(workspace) == [], "a run in progress was swept"
    (output / "go").touch()
    until(lambda: workspace.run("export-0001").state is RunState.SEALED)
    assert RunFolder.open(output.parent).exits()[0].clean


def test_two_runs_at_once_do_not_sweep_each_other(workspace: Workspace, tmp_path: Path) -> None:
    async def both() -> list[RunFolder]:
        folders: list[RunFolder] = []

        async def one(number: int) -> None:
            wanted = launch(tmp_path / str(number), PYTHON, "import time\ntime.sleep(0.5)")
            folders.append(await foreground.run(workspace, wanted))

        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
        async with anyio.create_task_group() as group:
            group.start_soon(one, 1)
            group.start_soon(one, 2)
        return folders

    assert {folder.job.run_id for folder in anyio.run(both)} == {"export-0001", "export-0002"}


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(launching.shutil, "copy", full)
    with pytest.raises(BuildError, match="No space left on device") as raised:
        run(workspace, launch(tmp_path, PYTHON))
    assert "free space" in raised.value.next_step
    assert list(workspace.runs.iterdir()) == []


def test_a_job_that_ran_out_of_space_is_no_record(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the disk was full") as raised:
        run(
            workspace,
            launch(tmp_path, PYTHON, "raise OSError(28, 'No space left on device', 'model.safetensors')"),
        )
    assert "free space" in raised.value.next_step
    assert list(workspace.runs.iterdir()) == []
    assert workspace.run("export-0001").state is RunState.LOST


def test_a_job_that_only_mentions_a_full_disk_is_recorded(workspace: Workspace, tmp_path: Path) -> None:
    body = "import sys; print('No space left on device', file=sys.stderr)"
    assert run(workspace, launch(tmp_path, PYTHON, body)).exits()[0].clean
