"""What every engine keeps: one suite over all of them. A new engine adds one entry to `SITES`.

The jobs are plain Python but for two, which import torch.
"""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.engine import Engine, State, Status
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.logs import read_log
from plumbline_mcp.errors import UsageError
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import WAITING, gone, said_pid, until


@dataclass
class Site:
    """An engine that runs one job at a time, and its workspace."""

    engine: Engine
    workspace: Workspace
    folder: Path

    def launch(self, body: str, **options: Any) -> Launch:
        """A launch of a job with this body."""
        return launch(self.folder, sys.executable, textwrap.dedent(body), **options)

    def submit(self, body: str, key: str | None = None, **options: Any) -> str:
        return self.engine.submit(self.launch(body, **options), key)

    def run(self, run_id: str) -> Path:
        return self.workspace.runs / run_id

    def over(self, run_id: str, seconds: float = 180) -> Status:
        """The status of the job once it is over."""

        def asked() -> Status | None:
            status = self.engine.status(run_id)
            return status if status.state.over else None

        found: Status = until(asked, seconds)
        return found

    def finished(self, body: str, **options: Any) -> tuple[Status, Path]:
        run_id = self.submit(body, **options)
        return self.over(run_id), self.run(run_id)


SITES: dict[str, Callable[[Workspace], Engine]] = {"local": lambda workspace: LocalEngine(workspace, slots=1)}


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    workspace = Workspace.open(tmp_path / "home")
    return Site(SITES[request.param](workspace), workspace, tmp_path)


TWO = {"ranks": 2}
RANK = "import os\nrank = int(os.environ['RANK'])\n"


def test_a_success_is_sealed(site: Site) -> None:
    status, run = site.finished("print('done')")
    assert (status.state, status.exit_code, status.signal, status.failed_rank) == (
        State.SUCCEEDED,
        0,
        None,
        None,
    )
    assert status.submitted <= status.started <= status.ended <= status.seen_at
    folder = RunFolder.open(run)
    assert [one.clean for one in folder.exits()] == [True]
    assert site.workspace.run(run.name).state is RunState.SEALED
    assert site.workspace.verify() == []


def test_two_ranks_reach_each_other(site: Site) -> None:
    body = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print(total.item())
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
    assert torch.cat(list(loader)).tolist() == list(range(8))
    dist.destroy_process_group()
    """
    status, run = site.finished(body, settings=TWO)
    assert status.state is State.SUCCEEDED
    assert [read_log(run, rank).data for rank in (0, 1)] == [b"3.0\n", b"3.0\n"]


def test_the_first_rank_that_fails_is_told_from_those_it_took_with_it(site: Site) -> None:
    status, run = site.finished(f"{RANK}if rank == 1: os._exit(7)\nimport time; time.sleep(60)", settings=TWO)
    assert (status.state, status.exit_code, status.failed_rank) == (State.FAILED, 7, 1)
    bystander, failed = RunFolder.open(run).exits()
    assert (failed.code, failed.stopped) == (7, False)
    assert (bystander.code, bystander.stopped) == (None, True)
    assert "rank 1 failed first: exit code 7" in status.reason


def test_a_collective_that_breaks_after_a_rank_died_is_no_first_failure(site: Site) -> None:
    body = f"""
    {RANK.replace(chr(10), ";")}
    import signal, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    """
    status, run = site.finished(body, settings=TWO)
    assert (status.state, status.signal, status.failed_rank) == (State.FAILED, 9, 1)
    killed = RunFolder.open(run).exits()[1]
    assert (killed.signal, killed.stopped) == (9, False)


def test_a_rank_that_is_killed_with_its_wrapper_is_named(site: Site) -> None:
    body = f"{RANK}import signal, time\nif rank == 0: os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)"
    status, run = site.finished(body, settings=TWO)
    assert (status.state, status.failed_rank) == (State.FAILED, 0)
    killed, bystander = RunFolder.open(run).exits()
    assert (killed.stopped, bystander.stopped) == (False, True)
    assert killed.reason == "no exit file: the rank was killed"


def test_a_killed_launcher_is_no_failure_of_a_rank(site: Site) -> None:
    body = f"""
    {RANK.replace(chr(10), ";")}
    import pathlib, signal, time
    if rank == 0:
        wrapper = pathlib.Path(f"/proc/{{os.getppid()}}/stat").read_text()
        os.kill(int(wrapper.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(60)
    """
    status, run = site.finished(body, settings=TWO)
    assert (status.state, status.failed_rank) == (State.FAILED, None)
    assert status.reason == "what started the ranks was killed by signal 9"
    assert not any(one.clean for one in RunFolder.open(run).exits())


def test_a_queued_job_that_is_cancelled_never_starts(site: Site) -> None:
    first = site.submit(WAITING)
    pid = said_pid(site.run(first))
    second = site.submit(
        f"import pathlib\npathlib.Path({str(site.folder)!r}, 'ran').touch()", confinement="none"
    )
    assert site.engine.status(second).state is State.QUEUED
    site.engine.cancel(second)
    assert site.over(second).state is State.CANCELLED
    assert site.engine.status(first).state is State.RUNNING
    site.engine.cancel(first)
    assert site.over(first).state is State.CANCELLED
    assert gone(pid)
    assert not (site.folder / "ran").exists()
    assert not site.run(second).exists()


def test_a_queued_job_starts_once_there_is_a_place(site: Site) -> None:
    first = site.submit("import time\ntime.sleep(1)")
    second = site.submit("print('second')")
    assert site.engine.status(second).state is State.QUEUED
    assert [site.over(one).state for one in (first, second)] == [State.SUCCEEDED, State.SUCCEEDED]


def test_a_running_job_that_is_cancelled_keeps_its_records(site: Site) -> None:
    run_id = site.submit("print('begun', flush=True)" + WAITING)
    pid = said_pid(site.run(run_id))
    site.engine.cancel(run_id)
    status = site.over(run_id)
    assert (status.state, status.reason) == (State.CANCELLED, "cancelled")
    assert gone(pid)
    folder = RunFolder.open(site.run(run_id))
    assert folder.exits()[0].stopped
    assert folder.verified("logs/rank-00000.out").read_text() == "begun\n"


def test_the_grace_of_a_cancel_is_what_processes_get(site: Site) -> None:
    body = """
    import pathlib, signal, time
    def told(*_):
        time.sleep(1)
        pathlib.Path(output, "tidied").touch()
        raise SystemExit(0)
    signal.signal(signal.SIGTERM, told)
    """
    run_id = site.submit(textwrap.dedent(body) + WAITING)
    said_pid(site.run(run_id))
    site.engine.cancel(run_id, grace_s=10)
    assert site.over(run_id).state is State.CANCELLED
    assert (site.run(run_id) / "output/tidied").exists()


def test_a_second_request_may_only_be_more_impatient(site: Site) -> None:
    ignoring = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    run_id = site.submit(ignoring + WAITING)
    pid = said_pid(site.run(run_id))
    began = time.monotonic()
    site.engine.cancel(run_id, grace_s=300)
    site.engine.cancel(run_id, grace_s=600)
    log = site.run(run_id) / "logs/supervisor.log"
    until(lambda: log.is_file() and "SIGTERM" in log.read_text())
    assert not gone(pid)
    site.engine.cancel(run_id, grace_s=0)
    assert site.over(run_id).state is State.CANCELLED
    assert gone(pid)
    assert time.monotonic() - began < 100


def test_to_cancel_what_is_over_changes_nothing(site: Site) -> None:
    status, run = site.finished("print('done')")
    site.engine.cancel(run.name)
    site.engine.cancel(run.name)
    again = site.engine.status(run.name)
    assert again.model_copy(update={"seen_at": status.seen_at}) == status
    assert RunFolder.open(run).exits()[0].clean


def test_a_rank_that_hangs_is_named_at_the_time_limit(site: Site) -> None:
    body = f"{RANK}import time\nif rank == 1: time.sleep(600)"
    for limit in (
        8,
        16,
        32,
        64,
    ):  # until it is enough for rank 0 to end: a busy machine takes long to start two
        status, run = site.finished(body, settings=TWO, time_limit_s=limit)
        assert status.state is State.TIMED_OUT
        if RunFolder.open(run).exits()[0].clean:
            break
    assert status.reason == f"time limit of {limit} s; still running: rank 1"
    ended, hung = RunFolder.open(run).exits()
    assert ended.clean
    assert (hung.timed_out, hung.clean) == (True, False)


def test_the_same_key_twice_is_one_job(site: Site) -> None:
    body = f"with open({str(site.folder / 'runs')!r}, 'a') as file: file.write('once ')"
    first = site.submit(body, key="k1", confinement="none")
    assert site.submit(body, key="k1", confinement="none") == first == site.engine.find("k1")
    site.over(first)
    assert site.submit(body, key="k1", confinement="none") == first
    assert (site.folder / "runs").read_text() == "once "
    assert site.engine.find("k2") is None
    assert site.submit(body, key="k2", confinement="none") != first


def test_a_job_goes_on_without_its_client_and_is_found_again(site: Site) -> None:
    program = f"""
    import os, signal
    from pathlib import Path
    from plumbline_mcp.workspace import Workspace
    from tests.plumbline_mcp.engines.test_contract import SITES, Site
    folder = Path({str(site.folder)!r})
    workspace = Workspace.open(folder / "home")
    site = Site(SITES[{site.engine.name!r}](workspace), workspace, folder)
    site.submit("import pathlib, time\\nwhile not pathlib.Path(output, 'go').exists(): time.sleep(0.05)", "k")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=root, check=False)
    assert ended.returncode == -9
    run_id = site.engine.find("k")
    assert run_id is not None
    until(lambda: site.engine.status(run_id).state is State.RUNNING)
    (site.run(run_id) / "output" / "go").touch()
    assert site.over(run_id).state is State.SUCCEEDED
    assert site.workspace.run(run_id).state is RunState.SEALED


def test_a_log_is_paged_while_it_grows(site: Site) -> None:
    body = """
    import pathlib, time
    print("one", flush=True)
    while not pathlib.Path(output, "go").exists(): time.sleep(0.05)
    print("two", flush=True)
    """
    run_id = site.submit(body)
    run = site.run(run_id)
    until(lambda: (run / "logs/rank-00000.out").is_file() and read_log(run, 0).size)
    page = read_log(run, 0, limit=3)
    assert (page.data, page.offset, page.next_offset, page.size) == (b"one", 0, 3, 4)
    page = read_log(run, 0, offset=page.next_offset)
    assert (page.data, page.next_offset) == (b"\n", 4)
    assert read_log(run, 0, offset=4).data == b""
    (run / "output" / "go").touch()
    site.over(run_id)
    page = read_log(run, 0, offset=4)
    assert (page.data, page.next_offset, page.size) == (b"two\n", 8, 8)
    assert read_log(run, 0, offset=-4).data == b"two\n"


def test_an_unknown_run_is_a_usage_error(site: Site) -> None:
    for call in (site.engine.status, site.engine.cancel):
        with pytest.raises(UsageError, match="there is no run 'export-0099'"):
            call("export-0099")


def test_a_job_that_cannot_start_says_so(site: Site) -> None:
    broken = site.folder / "python"
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    run_id = site.engine.submit(
        site.launch("").model_copy(update={"interpreter": broken, "confinement": "none"})
    )
    status = site.over(run_id)
    assert (status.state, status.exit_code, status.failed_rank) == (State.FAILED, 127, 0)
    assert os.fsencode(broken) in read_log(site.run(run_id), None, "err").data
