"""What every check says of a job that was cancelled, that filled its disk or that ran out of time.

The jobs are real: each is submitted to the local engine and ended by it. The exit files and logs that it left
are then those of a run with the records that the other checks read.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.check import evaluate
from checks.optimizer_step import CHECK as STEP
from checks.optimizer_step import StepInputs
from checks.records.run_ends import how_it_ended
from checks.records.runs import Exit, RunFolder
from checks.verdict import Outcome, Verdict
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.workspace import Workspace
from tests.checks import test_data_runs as data_runs
from tests.checks import tiny_release
from tests.checks.built_runs import build_check, built
from tests.checks.export_pairs import export_check, write_llama
from tests.checks.loaded_runs import RunWriter, load_check
from tests.checks.trained_runs import seal, train_all
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import WAITING, said_pid, until

LIMIT_S = 6
CHECKS = ("build", "data", "export", "load", "optimizer_step")
BIG = "open(output + '/big', 'wb').write(__import__('os').urandom(3_000_000))\n"
TALKS = "import sys\nprint('loading shard 3', file=sys.stderr, flush=True)\n"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of real jobs by how they ended."""
    folder = tmp_path_factory.mktemp("ended")
    workspace = Workspace.open(folder / "home")
    engine, runs = LocalEngine(workspace), {}

    def over(body: str, cancel: bool = False, **options: object) -> Path:
        run = workspace.runs / engine.submit(launch(folder, sys.executable, body, **options), None)
        if cancel:
            said_pid(run)
            engine.cancel(run.name, why="cancelled from the command line")
        until(lambda: engine.status(run.name).state.over)
        return run

    runs["cancelled"] = over(WAITING, cancel=True)
    runs["disk"] = over(BIG + WAITING, disk_bytes=2_000_000)
    runs["silent"] = over(WAITING, time_limit_s=LIMIT_S)
    runs["talks"] = over(TALKS + WAITING, time_limit_s=LIMIT_S)
    runs["crashed"] = over("raise ValueError('no such column')")
    return runs


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "release")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_all(tmp_path_factory.mktemp("trained"), {"plain": {}})["plain"]


@pytest.fixture
def judged(
    ended: dict[str, Path], release: Path, trained: Path, tmp_path: Path
) -> Callable[[str, str], Verdict]:
    """The verdict of a check on a run that ended as a real job did."""

    def judge(check: str, how: str) -> Verdict:
        run, job = tmp_path / "run", ended[how]
        if check == "export":
            return export_check(release, job, framework=str(job.parents[2] / "pack"))
        if check == "load":
            return load_check(_as(RunWriter(run, dtype="bfloat16").seal(), job), release)
        if check == "build":
            return build_check(_as(built(run, release), job), release)
        if check == "optimizer_step":
            return evaluate(STEP, StepInputs(run=_as(Path(shutil.copytree(trained, run)), job)))
        rows = data_runs.write_run(run, {0: tiny_release.rows()})
        return data_runs.judged(tmp_path, tiny_release.write_release(tmp_path / "chat"), _as(rows, job))

    return judge


def _as(run: Path, job: Path) -> Path:
    """The run with the exit files, logs and limits of a job, sealed again."""
    for name in ("exit", "logs"):
        shutil.rmtree(run / name, ignore_errors=True)
        shutil.copytree(job / name, run / name)
    limit = json.loads((job / "job.json").read_text())["time_limit_s"]
    about = json.loads((run / "job.json").read_text()) | {"time_limit_s": limit}
    (run / "job.json").write_text(json.dumps(about))
    seal(run)
    return run


@pytest.mark.parametrize("check", CHECKS)
def test_a_cancelled_job_is_not_evaluated(judged: Callable[[str, str], Verdict], check: str) -> None:
    verdict = judged(check, "cancelled")
    assert verdict.outcome is Outcome.NOT_EVALUATED, verdict.reason
    assert verdict.reason.endswith("the job was cancelled from the command line")
    assert verdict.next_step == "run it again"


@pytest.mark.parametrize("check", CHECKS)
def test_a_job_that_met_its_disk_limit_is_not_evaluated(
    judged: Callable[[str, str], Verdict], check: str
) -> None:
    verdict = judged(check, "disk")
    assert verdict.outcome is Outcome.NOT_EVALUATED, verdict.reason
    assert "the job was cancelled: the run took" in verdict.reason
    assert "its limit is 2,000,000" in verdict.reason
    assert verdict.next_step == "run it again"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("how", ["silent", "talks"])
def test_a_time_limit_is_a_fail_that_names_it(
    judged: Callable[[str, str], Verdict], check: str, how: str
) -> None:
    verdict = judged(check, how)
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    assert f"still running at the job's time limit of {LIMIT_S} s" in verdict.reason
    assert "another rank" not in verdict.reason
    assert "longer time limit" in verdict.next_step
    assert ("loading shard 3" in verdict.reason) == (how == "talks")
    assert ("logs/rank-00000.err" in verdict.next_step) == (how == "talks")


@pytest.mark.parametrize("check", CHECKS)
def test_a_crash_is_told_with_its_last_line_and_its_log(
    judged: Callable[[str, str], Verdict], check: str
) -> None:
    verdict = judged(check, "crashed")
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    assert "rank 0 ended with code 1; its last line of stderr: ValueError: no such column" in verdict.reason
    assert "logs/rank-00000.err" in verdict.next_step


def test_an_ending_that_is_none_is_inconclusive(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "exit/job.json").write_text('{"outcome": 3}')
    seal(run)
    verdict = evaluate(STEP, StepInputs(run=run))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "exit/job.json does not fit" in verdict.reason


def test_a_rank_stopped_for_another_is_said_so(ended: dict[str, Path]) -> None:
    run = RunFolder.open(ended["crashed"])
    stopped = Exit(rank=1, signal=15, stopped=True)
    assert how_it_ended(run, 1, stopped).startswith("was told to stop after another rank failed; its last")
