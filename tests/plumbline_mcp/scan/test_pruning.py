"""Only run folders that nothing rests on may go, each with its entry in the audit log."""

from pathlib import Path

import pytest

from checks.records.runs import Job
from checks.verdict import Evidence, Outcome
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.pruning import REMOVED, Unneeded, remove, unneeded
from plumbline_mcp.workspace import RunOutcome, RunState, Workspace
from tests.plumbline_mcp.stored_examples import verdict

MANIFEST = "a" * 64


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home")


def sealed(
    workspace: Workspace, run_id: str, outcome: RunOutcome = RunOutcome.SUCCEEDED, **fields: object
) -> str:
    known = {"run_id": run_id, "procedure": run_id.rpartition("-")[0], "framework": "transformers"}
    workspace.add_run(Job.model_validate(known | fields))
    folder = workspace.runs / run_id
    (folder / "records").mkdir(parents=True)
    (folder / "records/rank.bin").write_bytes(b"x" * 1000)
    workspace.seal_run(run_id, MANIFEST, outcome)
    return run_id


def judged(workspace: Workspace, run_id: str, outcome: Outcome = Outcome.PASS, **inputs: str) -> str:
    said = verdict("optimizer_step", outcome).model_copy(update={"run_id": run_id, "evidence": ()})
    return workspace.add_verdict(said, {"run": str(workspace.runs / run_id), **inputs}).id


def names(found: list[Unneeded]) -> list[str]:
    return [one.run_id for one in found]


def test_of_runs_of_one_job_the_replaced_ones_may_go(workspace: Workspace) -> None:
    runs = [sealed(workspace, f"train_step-000{number}") for number in (1, 2, 3)]
    old = [judged(workspace, run, Outcome.FAIL) for run in runs[:2]]
    judged(workspace, runs[2])
    found = unneeded(workspace)
    assert [(one.run_id, one.bytes, one.verdicts) for one in found] == [
        (runs[1], 1000, (old[1],)),
        (runs[0], 1000, (old[0],)),
    ]
    remove(workspace, found)
    assert [path.name for path in workspace.runs.iterdir()] == [runs[2]]
    assert unneeded(workspace) == []
    entries = [entry for entry in workspace.audit.entries() if entry.event == REMOVED]
    assert [(entry.subject, entry.detail) for entry in entries] == [
        (one.run_id, {"manifest_sha256": MANIFEST, "verdicts": list(one.verdicts)}) for one in found
    ]
    assert workspace.verify() == []
    assert workspace.run(runs[0]).state is RunState.SEALED
    assert workspace.verdict(old[0]).verdict.outcome is Outcome.FAIL


def test_a_run_that_waits_for_its_check_stays_until_the_same_job_ran_again(workspace: Workspace) -> None:
    first = sealed(workspace, "rows-0001")
    assert unneeded(workspace) == []
    sealed(workspace, "rows-0002", RunOutcome.FAILED)
    sealed(workspace, "rows-0003", settings={"packing": "wrapped"})
    assert unneeded(workspace) == []
    sealed(workspace, "rows-0004")
    assert names(unneeded(workspace)) == ["rows-0002", first]


def test_what_something_rests_on_stays_and_says_so(workspace: Workspace) -> None:
    kept = sealed(workspace, "train_step-0001")
    counts = judged(workspace, kept)
    with pytest.raises(UsageError, match=f"stays: {counts} rests on it"):
        unneeded(workspace, [kept])
    read = sealed(workspace, "export-0001")
    reader = sealed(workspace, "load-0001", inputs={"model": str(workspace.runs / read / "output")})
    with pytest.raises(UsageError, match=f"stays: {reader} rests on it"):
        unneeded(workspace, [read])
    seen = sealed(workspace, "rows-0001")
    proof = Evidence(path=str(workspace.runs / seen / "rows"), sha256=MANIFEST, size=1, role="rows")
    said = workspace.add_verdict(verdict().model_copy(update={"evidence": (proof,)}), {"rows": "elsewhere"})
    with pytest.raises(UsageError, match=f"stays: {said.id} rests on it"):
        unneeded(workspace, [seen])
    with pytest.raises(UsageError, match="there is no run"):
        unneeded(workspace, ["rows-0999"])
    assert names(unneeded(workspace, [reader])) == [reader]


def test_a_run_that_is_not_over_stays(workspace: Workspace) -> None:
    workspace.add_run(Job(run_id="rows-0001", procedure="rows", framework="transformers"))
    (workspace.runs / "rows-0001").mkdir(parents=True)
    sealed(workspace, "rows-0002")
    assert unneeded(workspace) == []
    with pytest.raises(UsageError, match="not that of a finished run"):
        unneeded(workspace, ["rows-0001"])


def test_what_was_judged_meanwhile_stays(workspace: Workspace) -> None:
    run = sealed(workspace, "train_step-0001")
    found = unneeded(workspace, [run])
    judged(workspace, run)
    with pytest.raises(UsageError, match="stays"):
        remove(workspace, found)
    assert (workspace.runs / run / "records/rank.bin").is_file()
    assert not any(entry.event == REMOVED for entry in workspace.audit.entries())


def test_a_link_in_the_place_of_a_folder_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    run = sealed(workspace, "rows-0001")
    elsewhere = (workspace.runs / run).rename(tmp_path / "elsewhere")
    (workspace.runs / run).symlink_to(elsewhere)
    with pytest.raises(UsageError, match="not that of a finished run"):
        unneeded(workspace, [run])
    assert (elsewhere / "records/rank.bin").is_file()
