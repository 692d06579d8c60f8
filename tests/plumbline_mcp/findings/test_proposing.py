"""A proposal is held against what the workspace has: its verdicts, its sealed runs, what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.errors import Inconclusive
from checks.verdict import Evidence, Outcome, Place
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings.copying import measured_values
from plumbline_mcp.findings.finding import Handle, Pattern
from plumbline_mcp.findings.proposing import _own_evidence, handle_of, proposal_of, propose, waiting
from plumbline_mcp.findings.questions import Where
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp import handmade_verdicts
from tests.plumbline_mcp.findings import faulty_export
from tests.plumbline_mcp.findings.faulty_export import PROPOSER, TENSOR, Faulty

WORDS: dict[str, Any] = {
    "pattern": 6,
    "silent": True,
    "title": "A title",
    "cause": "a cause",
    "fix": "a fix",
    "cheapest_check": "check export",
    "verdicts": ["export-0002"],
}


def test_the_claim_is_the_verdicts_first_problem_and_what_its_failing_parts_measured(faulty: Faulty) -> None:
    finding = faulty_export.found(faulty).finding
    assert finding.claim.outcome == "fail"
    assert finding.claim.place == {"file": "model-00002-of-00003.safetensors", "tensor": TENSOR}
    assert finding.place.tensor == TENSOR
    assert finding.claim.measured["values: elements that differ"] == 4096
    assert {name.split(":")[0] for name in finding.claim.measured} == {"values"}
    assert finding.claim.values == {}


def test_evidence_is_named_with_the_digest_that_was_sealed(faulty: Faulty) -> None:
    finding = faulty_export.found(faulty).finding
    (handle,) = finding.evidence
    assert (handle.source, handle.file) == (faulty.run_id, "output/model-00002-of-00003.safetensors")
    assert handle.span == f"tensor {TENSOR}"
    assert len(handle.sha256) == 64
    assert finding.run_sha256 == {faulty.run_id: faulty.workspace.run(faulty.run_id).manifest_sha256}
    named = faulty_export.found(
        faulty, evidence=(Handle(source=faulty.run_id, file="output/config.json", span="bytes 0-9"),)
    )
    assert named.finding.evidence[0].span == "bytes 0-9"
    assert len(named.finding.evidence[0].sha256) == 64
    of_verdict = faulty_export.found(
        faulty, evidence=(Handle(source=faulty.verdict.id, file="output/config.json"),)
    )
    assert of_verdict.finding.evidence[0].sha256 == named.finding.evidence[0].sha256


def test_a_place_that_names_only_a_tensor_brings_its_file(faulty: Faulty) -> None:
    (handle,) = faulty_export.found(faulty, place=Place(tensor=TENSOR)).finding.evidence
    assert (handle.file, handle.span) == ("output/model-00002-of-00003.safetensors", f"tensor {TENSOR}")


def test_without_a_file_of_the_place_all_is_evidence_and_nothing_is_cut(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = faulty_export.found(faulty, place=Place(step=3)).finding.evidence
    names = {one.file for one in everywhere}
    run = faulty.workspace.runs / faulty.run_id
    judged = {Path(one.path) for one in faulty.verdict.evidence}
    sealed = {path.relative_to(run).as_posix() for path in judged if path.is_relative_to(run)}
    manifest = json.loads((run / "manifest.json").read_text())
    assert names == sealed & manifest["files"].keys()
    assert len(names) > 1
    monkeypatch.setattr("plumbline_mcp.findings.proposing._MOST_FILES", 1)
    with pytest.raises(UsageError, match=f"rests on {len(names)} files") as raised:
        faulty_export.found(faulty, place=Place(step=3))
    assert "RUN:FILE" in raised.value.next_step
    assert len(faulty_export.found(faulty, place=Place(tensor=TENSOR)).finding.evidence) == 1


def test_of_too_many_files_those_of_the_places_rank_are_evidence(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict's evidence is given names of two ranks: no run here is of as many files."""
    verdict = faulty.verdict.model_copy(update={"run_id": None, "evidence": made_evidence(2)})
    place: Where = {"rank": 1, "step": 3}
    assert len(_own_evidence(faulty.workspace, verdict, place)) == 6
    monkeypatch.setattr("plumbline_mcp.findings.proposing._MOST_FILES", 3)
    found = _own_evidence(faulty.workspace, verdict, place)
    assert [one.file for one in found] == [
        "/run/records/rank-00001/steps-0.jsonl",
        "/run/records/rank-00001/steps-1.jsonl",
        "/run/logs/rank-00001.err",
    ]
    with pytest.raises(UsageError, match="rests on 6 files"):
        _own_evidence(faulty.workspace, verdict, {"step": 3})


def made_evidence(ranks: int) -> tuple[Evidence, ...]:
    names = ("records/rank-{}/steps-0.jsonl", "records/rank-{}/steps-1.jsonl", "logs/rank-{}.err")
    paths = [f"/run/{name}".format(f"{rank:05d}") for rank in range(ranks) for name in names]
    return tuple(Evidence(path=path, sha256="0" * 64, size=1, role="steps") for path in paths)


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        ({"source": "export-0001", "file": "output/none.json"}, "is not in the manifest of export-0001"),
        ({"source": "export-0001", "file": "../plumbline.db"}, "is not in the manifest"),
        ({"source": "export-0002", "file": "none.json"}, "is not in the evidence of export-0002"),
        ({"source": "rows-0001", "file": "x"}, "there is no run 'rows-0001'"),
        ({"source": "export-0001", "file": "output/config.json", "sha256": "0" * 64}, "was sealed as"),
    ],
)
def test_evidence_that_is_not_there_is_refused(faulty: Faulty, handle: dict[str, str], said: str) -> None:
    before = Findings(faulty.workspace).count()
    with pytest.raises(UsageError, match=said) as raised:
        faulty_export.found(faulty, evidence=(Handle.model_validate(handle),))
    assert raised.value.next_step
    assert Findings(faulty.workspace).count() == before


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rows-0001:records/a.jsonl", ("rows-0001", "records/a.jsonl", "")),
        ("rows-0001:records/a.jsonl:row 3", ("rows-0001", "records/a.jsonl", "row 3")),
        ("r:a:b.json:bytes 0-63", ("r", "a:b.json", "bytes 0-63")),
        ("r:a:b.json", ("r", "a:b.json", "")),
        ("r:m.safetensors:tensor model.layers.1.w", ("r", "m.safetensors", "tensor model.layers.1.w")),
    ],
)
def test_evidence_may_be_written_as_text(text: str, wanted: tuple[str, str, str]) -> None:
    given = handle_of(text)
    assert isinstance(given, dict)
    assert (given["source"], given["file"], given["span"]) == wanted


@pytest.mark.parametrize("text", ["", "x", ":file", "run:"])
def test_text_that_is_no_evidence_says_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError, match="is no evidence") as raised:
        handle_of(text)
    assert "RUN:FILE:SPAN" in raised.value.next_step


def test_a_stated_place_and_value_are_the_claim(faulty: Faulty) -> None:
    stored = faulty_export.found(
        faulty, place=Place(tensor="w", rank=3), values={"values: elements that differ": 7.0}
    )
    assert stored.finding.claim.place == {"tensor": "w", "rank": 3}
    assert stored.finding.claim.values == {"values: elements that differ": 7.0}
    with pytest.raises(UsageError, match="did not measure 'loss: mean'") as raised:
        faulty_export.found(faulty, values={"loss: mean": 1.0})
    assert "values: elements that differ" in raised.value.next_step


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pattern": 8}, "pattern: "),
        ({"title": "x"}, "title: "),
        ({"cause": None}, "cause: "),
        ({"verdicts": []}, "verdicts: "),
        ({"state": "confirmed"}, "state: "),
        ({"values": {"a: b": float("nan")}}, "values"),
        ({"place": {"planet": 1}}, "place.planet"),
        ({"evidence": [{"source": "a", "file": "b", "span": "everything"}]}, "evidence"),
    ],
)
def test_words_that_do_not_fit_are_named_with_the_value(changed: dict[str, Any], said: str) -> None:
    given = WORDS | changed
    with pytest.raises(UsageError, match=said):
        proposal_of(given)


def test_only_a_verdict_that_decided_can_be_rebuilt(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    undecided = workspace.add_verdict(handmade_verdicts.export_inconclusive(), {})
    with pytest.raises(UsageError, match="inconclusive: nothing in it can be rebuilt"):
        propose(workspace, proposal_of(WORDS | {"verdicts": [undecided.id]}), "me")
    with pytest.raises(UsageError, match="no verdict 'data-0009'"):
        propose(workspace, proposal_of(WORDS | {"verdicts": ["data-0009"]}), "me")
    passed = handmade_verdicts.image_pass()
    good = workspace.add_verdict(passed, {})
    assert passed.outcome is Outcome.PASS
    stored = propose(workspace, proposal_of(WORDS | {"verdicts": [good.id]}), "me")
    assert (stored.finding.claim.outcome, stored.finding.claim.place) == ("pass", {})
    with pytest.raises(UsageError, match="named twice"):
        propose(workspace, proposal_of(WORDS | {"verdicts": [good.id, good.id]}), "me")


def test_a_finding_is_on_one_framework(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    passed = handmade_verdicts.image_pass()
    unnamed = passed.model_copy(update={"target": {}, "run_id": None})
    bare = workspace.add_verdict(unnamed, {})
    with pytest.raises(UsageError, match=f"nothing says which framework {bare.id} is about") as raised:
        propose(workspace, proposal_of(WORDS | {"verdicts": [bare.id]}), "me")
    assert "--framework" in raised.value.next_step
    named = proposal_of(WORDS | {"verdicts": [bare.id], "framework": "trl"})
    stored = propose(workspace, named, "me").finding
    assert stored.framework == "trl"
    assert waiting(workspace, named, "me") == stored.id
    given = workspace.add_verdict(unnamed, {"framework": "transformers"})
    found = propose(workspace, proposal_of(WORDS | {"verdicts": [given.id]}), "me").finding
    assert found.framework == "transformers"
    with pytest.raises(UsageError, match="is of transformers, not of trl"):
        propose(workspace, proposal_of(WORDS | {"verdicts": [given.id], "framework": "trl"}), "me")


def test_a_verdict_of_a_check_that_nobody_else_has_is_no_finding(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    own = handmade_verdicts.data_fail().model_copy(update={"check": "proposed_lines"})
    stored = workspace.add_verdict(own, {})
    with pytest.raises(UsageError, match="'proposed_lines', no check of this version"):
        propose(workspace, proposal_of(WORDS | {"verdicts": [stored.id]}), "me")


def test_the_same_words_again_are_looked_for_among_the_proposers_own_findings(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    fail, other = (
        workspace.add_verdict(made().model_copy(update={"run_id": None}), {})
        for made in (handmade_verdicts.data_fail, handmade_verdicts.image_pass)
    )
    (name, *_) = measured_values(fail)
    mine = proposal_of(WORDS | {"verdicts": [fail.id], "values": {name: measured_values(fail)[name]}})
    again = propose(workspace, mine, "me").finding.id
    for proposer in ("me", "somebody"):
        propose(workspace, proposal_of(WORDS | {"verdicts": [other.id]}), proposer)
    assert waiting(workspace, mine, "me") == again
    assert waiting(workspace, mine, "somebody") is None


def test_a_run_that_is_not_sealed_or_was_changed_is_no_evidence(tmp_path: Path) -> None:
    faulty = faulty_export.make(tmp_path)
    manifest = faulty.workspace.runs / faulty.run_id / "manifest.json"
    before = manifest.read_text()
    manifest.write_text(before + " ")
    with pytest.raises(Inconclusive, match=r"manifest\.json is not the sealed one"):
        faulty_export.found(faulty)
    manifest.write_text(before)
    assert faulty_export.found(faulty).finding.id == "finding-0001"


def test_who_proposed_what_when_is_kept(faulty: Faulty) -> None:
    finding = faulty_export.found(faulty).finding
    assert finding.proposer == PROPOSER
    assert finding.pattern is Pattern.CONVERSION
    assert finding.pattern.words == "conversion alters the checkpoint"
    assert finding.framework == "small"
    assert finding.system_version
    assert Findings(faulty.workspace).get(finding.id).finding == finding
