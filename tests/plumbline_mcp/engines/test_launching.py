"""A launch is checked whole before anything is written; what runs is one readable script."""

import subprocess
import sys
from pathlib import Path

import pytest

from checks.errors import BadInput
from checks.records.runs import Job
from plumbline_mcp.engines.launching import Launch, prepare, render, write_run
from plumbline_mcp.engines.procedures import PROCEDURES, load_procedure, procedures
from plumbline_mcp.engines.temporary_folder import unlink
from plumbline_mcp.errors import UsageError
from tests.plumbline_mcp.engines.small_pack import launch

GOLDEN = Path(__file__).with_name("job.sh.golden")


@pytest.mark.parametrize(("ranks", "golden"), [(1, "job.sh.golden"), (2, "job-ranks.sh.golden")])
def test_the_script_is_the_golden_one(monkeypatch: pytest.MonkeyPatch, ranks: int, golden: str) -> None:
    for name in ("LD_LIBRARY_PATH", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    job = Job(
        run_id="rows-0007",
        procedure="rows",
        framework="transformers",
        interpreter="/opt/it's here/bin/python",
        world_size=ranks,
    )
    text = render(job, Path("/data/my runs/rows-0007"), "rows.py")
    assert text == GOLDEN.with_name(golden).read_text()
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


def test_hostile_names_stay_one_word(tmp_path: Path) -> None:
    run = tmp_path / "a b; touch $(x) 'q' \"p\""
    run.mkdir()
    prepared = prepare(launch(tmp_path, sys.executable), "export-0001")
    write_run(prepared, run)
    subprocess.run(["bash", "-n", run / "job.sh"], check=True)
    done = subprocess.run(["bash", run / "job.sh"], capture_output=True, text=True, check=False)
    unlink(run)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"procedure": "rise"}, "there is no procedure 'rise'"),
        ({"interpreter": "/nowhere/python"}, "/nowhere/python is no interpreter"),
        ({"interpreter": "/etc/passwd"}, "/etc/passwd is no interpreter"),
        ({"inputs": {}}, "needs --model"),
        ({"inputs": {"model": "/", "workload": "/"}}, "takes no --workload"),
        ({"inputs": {"model": "/nowhere"}}, "there is no /nowhere"),
        ({"plants": ["/nowhere/plant.py"]}, "there is no plant"),
        ({"settings": {"speed": 1}}, "has no setting 'speed'"),
        ({"settings": {"size": "big"}}, "setting size is 'big'"),
        ({"settings": {"size": True}}, "setting size is True"),
        ({"settings": {"size": 0}}, "setting size is 0"),
        ({"settings": {"order": "sideways"}}, "setting order is 'sideways'"),
        ({"settings": {"fast": True}}, "refused by the framework"),
    ],
)
def test_a_mistake_in_a_launch_is_named(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        prepare(launch(tmp_path, sys.executable, **changed), "export-0001")
    assert raised.value.next_step


def test_an_unknown_framework_lists_the_built_in_ones() -> None:
    wanted = Launch(framework="megatron", procedure="rows", interpreter=sys.executable, inputs={})
    with pytest.raises(BadInput, match="megatron") as raised:
        prepare(wanted, "rows-0001")
    assert "transformers" in raised.value.next_step


def test_an_interpreter_of_a_venv_is_never_resolved(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert prepare(launch(tmp_path, str(link)), "export-0001").job.interpreter == str(link)


def test_every_procedure_has_a_script_and_feeds_a_check() -> None:
    for name in procedures():
        procedure = load_procedure(name)
        assert procedure.name == name
        assert (PROCEDURES / procedure.script).is_file()
        assert procedure.feeds
