"""Stored records judged again: the same verdict, a changed one with its reason, or records that changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from checks.verdict import Outcome, Part, Verdict
from plumbline_mcp.scan.reevaluation import Change, differences, reevaluate
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.workspace import Workspace
from tests.checks import tiny_release


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home")


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Any]:
    return {
        "model": str(tiny_release.write_release(tmp_path / "release")),
        "workload": str(tiny_release.write_workload(tmp_path / "workload.jsonl")),
        "rows": str(tiny_release.write_rows(tmp_path / "rows.jsonl", tiny_release.rows())),
    }


def stored(workspace: Workspace, inputs: dict[str, Any], **change: Any) -> Verdict:
    """A verdict in the workspace, as another version might have given it."""
    verdict = anyio.run(run_check, workspace, "data", inputs)
    return workspace.add_verdict(verdict.model_copy(update=change), inputs) if change else verdict


def test_the_same_records_give_the_same_verdict(workspace: Workspace, inputs: dict[str, Any]) -> None:
    verdict = stored(workspace, inputs)
    (result,) = anyio.run(reevaluate, workspace, [verdict.id])
    assert (result.change, result.why) == (Change.SAME, ())
    assert workspace.verdict(result.after or "").verdict.outcome is Outcome.PASS


def test_a_verdict_of_another_version_is_listed_with_the_reason(
    workspace: Workspace, inputs: dict[str, Any]
) -> None:
    verdict = stored(workspace, inputs, outcome=Outcome.FAIL, system_version="0.0.1-old")
    (result,) = anyio.run(reevaluate, workspace, [verdict.id])
    assert result.change is Change.CHANGED
    assert result.why[0] == "outcome: fail before, pass now"
    assert "0.0.1-old before" in result.why[-1]


def test_records_that_changed_are_not_judged(workspace: Workspace, inputs: dict[str, Any]) -> None:
    verdict = stored(workspace, inputs)
    with Path(inputs["rows"]).open("a") as file:
        file.write(json.dumps(tiny_release.rows()[0]) + "\n")
    (result,) = anyio.run(reevaluate, workspace, [verdict.id])
    assert (result.change, result.after) == (Change.EVIDENCE_CHANGED, None)
    Path(inputs["rows"]).unlink()
    (result,) = anyio.run(reevaluate, workspace, [verdict.id])
    assert (result.change, result.after) == (Change.EVIDENCE_MISSING, None)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "tokenizer.json"])
def test_a_changed_file_of_the_release_is_changed_evidence(
    workspace: Workspace, inputs: dict[str, Any], name: str
) -> None:
    verdict = stored(workspace, inputs)
    with (Path(inputs["model"]) / name).open("a") as file:
        file.write(" ")
    (result,) = anyio.run(reevaluate, workspace, [verdict.id])
    assert result.change is Change.EVIDENCE_CHANGED
    assert name in result.why[0]


def test_all_verdicts_are_judged_when_none_is_named(workspace: Workspace, inputs: dict[str, Any]) -> None:
    first, second = stored(workspace, inputs), stored(workspace, inputs)
    shutil.rmtree(inputs["model"])
    results = anyio.run(reevaluate, workspace)
    assert {result.before for result in results} == {first.id, second.id}


def test_verdicts_are_judged_again_in_the_order_in_which_they_were_made(
    workspace: Workspace, inputs: dict[str, Any]
) -> None:
    first, second = stored(workspace, inputs), stored(workspace, inputs)
    for named in ((), (second.id, first.id)):
        results = anyio.run(reevaluate, workspace, named)
        assert [result.before for result in results][:2] == [first.id, second.id]


def test_differences_name_the_part_that_changed() -> None:
    old = Verdict(check="x", outcome=Outcome.PASS, reason="", parts=(Part(name="a", outcome=Outcome.PASS),))
    gone = old.model_copy(update={"parts": (Part(name="b", outcome=Outcome.PASS),)})
    worse = old.model_copy(update={"parts": (Part(name="a", outcome=Outcome.FAIL, reason="off"),)})
    assert differences(old, old) == []
    assert differences(old, gone) == ["part a: gone from this version", "part b: new in this version"]
    assert differences(old, worse) == ["part a: pass before, fail now (off)"]
