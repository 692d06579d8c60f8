"""The neutral copy: it says nothing of the claim, of ours, or of where things lay, and is still judgeable."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import checks
from checks.check import evaluate
from checks.errors import Inconclusive, NotEvaluated
from checks.records.runs import RunFolder
from plumbline_mcp.findings.copying import prepare
from plumbline_mcp.findings.neutral import LeftOut, Neutral
from plumbline_mcp.findings.verification import take
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.findings import faulty_export
from tests.plumbline_mcp.findings.faulty_export import Faulty


def secrets_of(faulty: Faulty, stored: Any) -> dict[str, str]:
    """Everything that a verifier must not meet, by what it is."""
    finding, verdict = stored.finding, faulty.verdict
    words = {
        "finding id": finding.id,
        "verdict id": verdict.id,
        "run id": faulty.run_id,
        "workspace": str(faulty.home),
        "workspace folder": faulty.home.name,
        "target folder": str(faulty.target),
        "target folder's name": faulty.target.name,
        "model folder": str(faulty.model),
        "target name": "secret.toml",
        "proposer": finding.proposer,
        "title": finding.title,
        "cause": finding.cause,
        "cause place": finding.cause_place,
        "fix": finding.fix,
        "cheapest check": finding.cheapest_check,
        "also check": finding.also_check[0],
        "reason": verdict.reason,
        "interpreter's environment": str(
            Path(RunFolder.open(faulty.workspace.runs / faulty.run_id).job.interpreter).parent
        ),
        "code": finding.claim.code,
        "verdict digest": finding.verdict_sha256[verdict.id],
        "manifest digest": finding.run_sha256[faulty.run_id],
        "sealed digest of the spec": RunFolder.open(faulty.workspace.runs / faulty.run_id).manifest[
            "job.json"
        ][0],
    }
    for part, problem in verdict.problems():
        words[f"message of {part}"] = problem.message
        words |= {f"expected of {part}": problem.expected or "", f"step of {part}": problem.next_step or ""}
    for part in verdict.parts:
        words[f"reason of {part.name}"] = part.reason
    return {name: word for name, word in words.items() if len(word) > 4}


def leaks(secrets: dict[str, str], folder: Path) -> list[str]:
    """Every secret that any byte of any file, or any name, in a folder holds."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix().encode()
        content = path.read_bytes() if path.is_file() else b""
        for what, word in secrets.items():
            spelled = {word.encode(), json.dumps(word)[1:-1].encode()}
            if any(text in content or text in name for text in spelled):
                found.append(f"{what} {word!r} in {path.relative_to(folder)}")
    return found


def test_no_byte_of_the_copy_and_no_word_of_the_question_tells_the_claim(
    faulty: Faulty, tmp_path: Path
) -> None:
    stored = faulty_export.found(faulty)
    folder = tmp_path / "copy"
    taken = take(faulty.workspace, stored.finding.id, "verifier", folder=folder)
    secrets = secrets_of(faulty, stored)
    assert len(secrets) > 20
    assert leaks(secrets, folder) == []
    told = taken.question.model_dump_json()
    assert [what for what, word in secrets.items() if word in told] == []
    assert len(list(folder.rglob("*"))) > 25
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    kept = taken.kept.model_dump_json()
    assert secrets["sealed digest of the spec"] in kept
    assert secrets["workspace"] in kept


def test_the_search_for_leaks_finds_what_is_put_there(faulty: Faulty, tmp_path: Path) -> None:
    stored = faulty_export.found(faulty)
    secrets = secrets_of(faulty, stored)
    for number, word in enumerate(secrets.values()):
        (tmp_path / f"{number}.bin").write_bytes(b"\x00\xff" + word.encode() + b"\x00")
    assert len(leaks(secrets, tmp_path)) >= len(secrets)


def test_the_run_in_the_copy_is_sealed_anew_and_what_is_judged_is_bit_for_bit_the_same(
    faulty: Faulty, tmp_path: Path
) -> None:
    _, kept = prepare(faulty.workspace, faulty.workspace.verdict(faulty.verdict.id), tmp_path / "copy")
    copy, original = (
        RunFolder.open(tmp_path / "copy" / "record-1"),
        RunFolder.open(faulty.workspace.runs / faulty.run_id),
    )
    assert copy.job.run_id == "record-1"
    assert (copy.job.target, copy.job.interpreter, copy.job.plants, copy.job.approval) == ({}, "", (), "none")
    for name in copy.manifest:
        copy.verified(name)
    outputs = [name for name in copy.manifest if name.startswith("output/")]
    assert len(outputs) > 5
    assert all(copy.manifest[name] == original.manifest[name] for name in outputs)
    assert set(kept.rewritten) >= {"record-1/job.json", "record-1/logs/rank-00000.out"}
    left = {name.split("/")[0] for name in original.manifest} - {name.split("/")[0] for name in copy.manifest}
    assert left == {"hooks", "job.sh"}


def test_the_check_gives_the_same_verdict_on_the_copy(faulty: Faulty, tmp_path: Path) -> None:
    question, _ = prepare(faulty.workspace, faulty.workspace.verdict(faulty.verdict.id), tmp_path / "copy")
    check = checks.discover()[question.check]
    paths = {name: str(tmp_path / "copy" / str(place)) for name, place in question.inputs.items()}
    verdict = evaluate(check, check.inputs.model_validate(paths))
    assert verdict.outcome is faulty.verdict.outcome
    assert [(p.name, p.outcome) for p in verdict.parts] == [(p.name, p.outcome) for p in faulty.verdict.parts]
    assert [p.place for _, p in verdict.problems()] == [p.place for _, p in faulty.verdict.problems()]


def test_a_record_that_was_changed_or_is_gone_is_never_asked_about(tmp_path: Path) -> None:
    faulty = faulty_export.make(tmp_path)
    stored = faulty.workspace.verdict(faulty.verdict.id)
    output = faulty.workspace.runs / faulty.run_id / "output"
    shard = next(output.glob("*.safetensors"))
    before = shard.read_bytes()
    shard.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises((Inconclusive, NotEvaluated), match=r"not the file that was (judged|sealed)"):
        prepare(faulty.workspace, stored, tmp_path / "changed")
    shard.write_bytes(before)
    log = faulty.workspace.runs / faulty.run_id / "logs" / "rank-00000.out"
    log.write_text("another story")
    with pytest.raises(Inconclusive, match="not the file that was sealed"):
        prepare(faulty.workspace, stored, tmp_path / "log")
    shutil.rmtree(output)
    with pytest.raises(NotEvaluated, match="is gone"):
        prepare(faulty.workspace, stored, tmp_path / "gone")


def test_a_conversation_that_names_a_system_folder_or_an_id_stays_what_was_trained_on(tmp_path: Path) -> None:
    """Only what is ours is rewritten: the workload is what the rows are judged against."""
    from tests.checks import tiny_release

    model = tiny_release.write_release(tmp_path / "release")
    (model / "config.json").write_text("{}")
    workload = tmp_path / "work.jsonl"
    home = str(Path.home())
    text = f"Look into {home}/notes and data-0001, then /etc/passwd."
    rows = tmp_path / "rows.jsonl"
    workload.write_text(
        json.dumps({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "no"}]})
    )
    rows.write_text(json.dumps({"input_ids": [1, 2], "labels": [-100, 2]}) + "\n")
    workspace = Workspace.open(tmp_path / "home")
    inputs = {"model": str(model), "workload": str(workload), "rows": str(rows)}
    verdict = anyio.run(run_check, workspace, "data", inputs)
    question, kept = prepare(workspace, workspace.verdict(verdict.id), tmp_path / "copy")
    assert question.inputs["rows"] == "record-1/rows.jsonl"
    assert (tmp_path / "copy" / str(question.inputs["workload"])).read_bytes() == workload.read_bytes()
    assert (tmp_path / "copy" / "record-1" / "rows.jsonl").read_bytes() == rows.read_bytes()
    assert kept.rewritten == ()


# --- rewriting ------------------------------------------------------------------------------------------


def neutral() -> Neutral:
    return Neutral({"/a/run": "record-1", "/a": "folder", "/ü/b": "files/b"}, {"rows-0001": "record-1"})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/a/run/x and /a/runner and /a/y", "record-1/x and folder/runner and folder/y"),
        ("rows-0001 rows-00011 my-rows-0001 rows-0001.", "record-1 rows-00011 my-rows-0001 record-1."),
        (json.dumps("/ü/b/c"), '"files/b/c"'),
        ("/ab/run", "/ab/run"),
    ],
)
def test_the_longest_whole_name_is_rewritten(text: str, wanted: str) -> None:
    assert neutral().text(text) == wanted


@given(st.text(max_size=200))
def test_no_name_is_left_in_any_text(around: str) -> None:
    told = neutral().text(f"{around}/a/run {around} rows-0001 {around}")
    assert "/a/run " not in told
    assert " rows-0001 " not in told


def test_a_safetensors_header_is_rewritten_and_its_tensors_stay(tmp_path: Path) -> None:
    tensors = {"w": np.arange(7, dtype=np.float32), "b": np.ones((2, 3), dtype=np.int16)}
    save_file(tensors, tmp_path / "x.safetensors", {"source": "/a/run/rows-0001", "n": "1"})
    copied = neutral().copy(tmp_path / "x.safetensors", tmp_path / "out" / "x.safetensors")
    again = load_file(tmp_path / "out" / "x.safetensors")
    assert copied.rewritten
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)
    assert b"/a/run" not in (tmp_path / "out" / "x.safetensors").read_bytes()


def test_what_cannot_be_rewritten_is_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x80\x04/a/run\xff")
    (tmp_path / "link").symlink_to(tmp_path / "x.bin")
    save_file({"w": np.frombuffer(b"/a/run..", dtype=np.uint8)}, tmp_path / "t.safetensors")
    save_file({"/a/run": np.ones(1, dtype=np.uint8)}, tmp_path / "n.safetensors")
    for name, why in (
        ("x.bin", "is no text"),
        ("t.safetensors", "a tensor in it"),
        ("n.safetensors", "a tensor's name"),
    ):
        with pytest.raises(LeftOut, match=why):
            neutral().copy(tmp_path / name, tmp_path / "out" / name)
    with pytest.raises(OSError, match="symbolic link"):
        neutral().copy(tmp_path / "link", tmp_path / "out" / "link")


def test_a_name_across_two_pieces_of_a_large_file_is_seen(tmp_path: Path) -> None:
    for shift in range(8):
        path = tmp_path / f"{shift}.txt"
        path.write_bytes(b"x" * (2**20 - shift) + b"/a/run" + b"y" * 10)
        assert neutral().copy(path, tmp_path / "out" / path.name).rewritten
