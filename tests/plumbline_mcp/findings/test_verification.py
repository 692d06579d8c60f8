"""Who verifies: another principal, once, without the claim; what follows from what they say."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from plumbline_mcp.errors import UsageError, WorkerCrashed, WorkerTimedOut
from plumbline_mcp.findings import verification
from plumbline_mcp.findings.questions import Submission
from plumbline_mcp.findings.recomputing import recomputed_checks, submission_of
from plumbline_mcp.findings.records import Way
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.findings.verification import (
    RECOMPUTE_PRINCIPAL,
    submit,
    take,
    take_next,
    verify_by_command,
    verify_by_recompute,
)
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.findings import faulty_export, made
from tests.plumbline_mcp.findings.faulty_export import PROPOSER, Faulty
from tests.plumbline_mcp.findings.reviewing import rebuilt, right_answer

TWO_LINES = """
import json, os, sys
question = json.load(open("question.json"))
print(json.dumps({answer}))
"""


def program(folder: Path, answer: str) -> list[str]:
    """A verifier that reads the question in its folder and prints an answer."""
    path = folder / "verifier.py"
    path.write_text(TWO_LINES.replace("{answer}", answer))
    return [sys.executable, str(path)]


def state(workspace: Workspace, finding: str) -> State:
    return Findings(workspace).get(finding).state


def test_the_proposer_cannot_verify_and_nobody_can_be_called_recompute(faulty: Faulty) -> None:
    finding = faulty_export.found(faulty).finding.id
    with pytest.raises(UsageError, match="whoever proposes does not verify"):
        take(faulty.workspace, finding, PROPOSER)
    for way in (Way.AGENT, Way.COMMAND):
        with pytest.raises(UsageError, match="cannot be called 'recompute'"):
            take(faulty.workspace, finding, RECOMPUTE_PRINCIPAL, way)


@pytest.mark.usefixtures("no_recompute")
def test_another_agent_that_finds_the_same_rebuilds(faulty: Faulty) -> None:
    stored = rebuilt(faulty.workspace, faulty_export.found(faulty))
    assert stored.state is State.REBUILT
    assert stored.events[-1].actor == "second-agent"
    assert stored.events[-1].verification == stored.verifications[-1].id


def test_where_it_can_be_recomputed_an_agents_agreement_alone_does_not_rebuild(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "recomputed_checks", lambda: frozenset({"export"}))
    stored = faulty_export.found(faulty)
    for principal in ("second-agent", "third-agent"):
        assert rebuilt(faulty.workspace, stored, principal).state is State.PROPOSED
    assert [
        str(one.comparison.result)
        for one in Findings(faulty.workspace).get(stored.finding.id).verifications
        if one.comparison
    ] == ["agree", "agree"]


@pytest.mark.parametrize("agent_first", [True, False])
def test_where_the_recomputation_cannot_decide_an_agents_agreement_counts_and_that_is_said(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, agent_first: bool
) -> None:
    monkeypatch.setattr(verification, "recomputed_checks", lambda: frozenset({"export"}))
    undecided = Submission(outcome="inconclusive", reason="not looked at")
    monkeypatch.setattr(verification, "recompute", lambda _folder: undecided)
    stored = faulty_export.found(faulty)
    finding = stored.finding.id
    for recomputes in (not agent_first, agent_first):
        assert state(faulty.workspace, finding) is State.PROPOSED
        if recomputes:
            verification.verify_by_recompute(faulty.workspace, finding)
        else:
            rebuilt(faulty.workspace, stored)
    last = Findings(faulty.workspace).get(finding).events[-1]
    assert (last.state, last.actor) == (State.REBUILT, "second-agent")
    assert "the recomputation cannot decide" in last.reason
    made = next(
        one for one in Findings(faulty.workspace).get(finding).verifications if one.id == last.verification
    )
    assert made.principal == "second-agent"


@pytest.mark.parametrize("agent_first", [True, False])
@pytest.mark.parametrize("silent_about", ["place", "values"])
def test_what_the_recomputation_decides_without_a_stated_value_or_place_no_agent_decides_instead(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, agent_first: bool, silent_about: str
) -> None:
    monkeypatch.setattr(verification, "recomputed_checks", lambda: frozenset({"export"}))
    stored = faulty_export.found(faulty, values={"values: elements that differ": 4096})
    partial = right_answer(stored).model_copy(update={silent_about: {}})
    monkeypatch.setattr(verification, "recompute", lambda _folder: partial)
    for recomputes in (not agent_first, agent_first):
        if recomputes:
            answered = verification.verify_by_recompute(faulty.workspace, stored.finding.id)
            assert answered.comparison
            assert answered.comparison.result == "undecided"
        else:
            rebuilt(faulty.workspace, stored)
        assert state(faulty.workspace, stored.finding.id) is State.PROPOSED


def test_a_finding_whose_evidence_changed_keeps_no_verifier_from_the_others(tmp_path: Path) -> None:
    own = faulty_export.make(tmp_path)
    moved, run_folder = faulty_export.found(own), own.workspace.runs / own.run_id
    spare = tmp_path / "another-run"
    second = anyio.run(run_check, own.workspace, "export", {
        "original": str(own.model), "export": str(_copied(run_folder / "output", spare)),
    })  # fmt: skip
    open_still = faulty_export.found(own, verdicts=(second.id,), framework="transformers")
    (path := run_folder / "output" / "config.json").chmod(0o600)
    path.write_text(path.read_text() + " ")
    taken = take_next(own.workspace, "second-agent")
    assert taken is not None
    assert taken.finding == open_still.finding.id
    store = Findings(own.workspace)
    assert "config.json" in store.unprepared(moved.finding.id)
    assert store.unprepared(open_still.finding.id) == ""
    assert take_next(own.workspace, "third-agent") is not None
    noted = list(own.workspace.audit.matching("subject", moved.finding.id))
    assert [one.event for one in noted] == ["finding_proposed", "question_unprepared"]
    assert not [one for one in own.workspace.verify() if "finding" in one]


def _copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "pass"},
        {"place": {"tensor": "model.layers.0.self_attn.q_proj.weight"}},
        {"place": {"tensor": "model.layers.1.self_attn.k_proj.weight"}},
        {"values": {"values: elements that differ": 4096 * 1.01}},
        {"values": {"values: elements that differ": 4095}},
    ],
)
def test_an_agent_that_finds_something_else_disputes(faulty: Faulty, wrong: dict[str, Any]) -> None:
    stored = faulty_export.found(faulty)
    finding = stored.finding.id
    taken = take(faulty.workspace, finding, "second-agent")
    answered = submit(
        faulty.workspace, taken.id, "second-agent", right_answer(stored).model_copy(update=wrong)
    )
    assert answered.comparison
    assert state(faulty.workspace, finding) is State.DISPUTED
    assert Findings(faulty.workspace).get(finding).events[-1].reason == answered.comparison.why() != ""


def test_an_answer_that_decides_nothing_leaves_it_open(faulty: Faulty) -> None:
    finding = faulty_export.found(faulty).finding.id
    taken = take(faulty.workspace, finding, "second-agent")
    submit(faulty.workspace, taken.id, "second-agent", Submission(outcome="inconclusive", reason="no time"))
    assert state(faulty.workspace, finding) is State.PROPOSED


def test_a_question_is_answered_once_by_whoever_took_it_and_while_it_is_open(faulty: Faulty) -> None:
    stored = faulty_export.found(faulty)
    finding, workspace = stored.finding.id, faulty.workspace
    first, second = take(workspace, finding, "b"), take(workspace, finding, "c")
    with pytest.raises(UsageError, match="taken by another verifier"):
        submit(workspace, first.id, "c", right_answer(stored))
    undecided = Submission(outcome="inconclusive")
    submit(workspace, first.id, "b", undecided)
    with pytest.raises(UsageError, match="submitted already"):
        submit(workspace, first.id, "b", right_answer(stored))
    third = take(workspace, finding, "d")
    submit(workspace, second.id, "c", right_answer(stored).model_copy(update={"outcome": "pass"}))
    with pytest.raises(UsageError, match="not open to verification"):
        submit(workspace, third.id, "d", right_answer(stored))
    with pytest.raises(UsageError, match="not open to verification"):
        take(workspace, finding, "e")
    noted = [
        entry.detail["result"]
        for entry in workspace.audit.entries()
        if entry.event == "verification_submitted" and entry.subject in (first.id, second.id)
    ]
    assert noted == ["undecided", "dispute"]
    assert workspace.verify() == []


# --- a program ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_recompute")
def test_a_program_is_started_in_the_copy_and_its_output_is_the_answer(
    faulty: Faulty, tmp_path: Path
) -> None:
    stored = faulty_export.found(faulty)
    answer = right_answer(stored).model_dump_json()
    seen = tmp_path / "seen.json"
    command = program(
        tmp_path,
        f"(open({str(seen)!r}, 'w').write(json.dumps([os.getcwd(), sorted(os.listdir('.')), question,"
        f" dict(os.environ)])), json.loads({answer!r}))[1]",
    )
    verify_by_command(faulty.workspace, stored.finding.id, "program", command)
    assert state(faulty.workspace, stored.finding.id) is State.REBUILT
    folder, names, question, environment = json.loads(seen.read_text())
    assert names == ["files", "question.json", "record-1"]
    assert not Path(folder).exists()
    assert str(faulty.home) not in json.dumps([folder, question, environment])
    assert stored.finding.id not in json.dumps([folder, question, environment])


def test_a_token_reaches_the_program_through_a_private_file_alone(faulty: Faulty, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o644)
    finding = faulty_export.found(faulty).finding.id
    command = program(
        tmp_path,
        '{"outcome": "inconclusive", "reason": open(os.environ["PLUMBLINE_TOKEN_FILE"]).read()'
        ' + str("s3cret" in str(sys.argv) + str(os.environ))}',
    )
    with pytest.raises(UsageError, match="owner alone can read"):
        verify_by_command(faulty.workspace, finding, "program", command, token)
    token.chmod(0o600)
    answered = verify_by_command(faulty.workspace, finding, "program", command, token)
    assert answered.submission
    assert answered.submission.reason == "s3cretFalse"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ("sys.exit('no GPU here')", WorkerCrashed, "exit code 1: no GPU here"),
        ("sys.exit('no GPU here\\nread INSTALL')", WorkerCrashed, r"code 1: .*no GPU here \| read INSTALL"),
        ("os.kill(os.getpid(), 9)", WorkerCrashed, "SIGKILL"),
        ("__import__('time').sleep(60)", WorkerTimedOut, "longer than 2 s"),
        ("{'outcome': 'maybe'}", UsageError, "outcome"),
        ("{'outcome': 'fail', 'claim': 1}", UsageError, "claim"),
        ("{'outcome': 'fail', 'values': {'x': float('nan')}}", UsageError, "answer|values"),
        ("[[]] * 10", UsageError, "the answer"),
        ("'x' * 2**25", UsageError, "larger than"),
    ],
)
def test_a_program_that_fails_or_talks_nonsense_changes_nothing(
    faulty: Faulty, tmp_path: Path, answer: str, error: type[Exception], said: str
) -> None:
    finding = faulty_export.found(faulty).finding.id
    with pytest.raises(error, match=said):
        verify_by_command(faulty.workspace, finding, "program", program(tmp_path, answer), timeout_s=2)
    assert state(faulty.workspace, finding) is State.PROPOSED


def test_a_deeply_nested_answer_is_refused() -> None:
    with pytest.raises(UsageError):
        submission_of(b"[" * 100_000)


# --- the recomputation ----------------------------------------------------------------------------------


def test_a_check_without_a_recomputation_is_said_to_have_none(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    claim = made.CLAIM.model_copy(update={"check": "collective"})
    finding = made.propose(workspace, claim).finding.id
    with pytest.raises(UsageError, match="no recomputation of the check 'collective'") as raised:
        verify_by_recompute(workspace, finding)
    assert "--command" in raised.value.next_step


@pytest.mark.skipif(
    "export" not in recomputed_checks(), reason="no recomputation of an export in this version"
)
def test_the_recomputation_rebuilds_a_true_finding_and_disputes_false_ones(faulty: Faulty) -> None:
    true = faulty_export.found(faulty)
    verify_by_recompute(faulty.workspace, true.finding.id)
    assert state(faulty.workspace, true.finding.id) is State.REBUILT, (
        Findings(faulty.workspace).get(true.finding.id).verifications[-1]
    )
    layer = faulty_export.found(faulty, place={"tensor": "model.layers.0.self_attn.q_proj.weight"})
    near = faulty_export.found(faulty, values={"values: elements that differ": 4096 * 0.995})
    for wrong in (layer, near):
        verify_by_recompute(faulty.workspace, wrong.finding.id)
        assert state(faulty.workspace, wrong.finding.id) is State.DISPUTED
