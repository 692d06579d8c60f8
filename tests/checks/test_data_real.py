"""The data check on real tokenizers, templates and workloads: the outcome of each is stated here and met.

The rows under test are made by transformers' own ``apply_chat_template`` and by labellers that read token
ids only, never by the reference.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.check import evaluate, inject, silent
from checks.data import CHECK, DataCase, DataInputs
from checks.records.documents import Document
from checks.verdict import Caught, Outcome, Part
from tests.real_templates import DATE, TEMPLATES, TOKENIZERS, WORKLOADS, tokenizer_json
from tests.shared_data import needs_shared

pytestmark = needs_shared

WORKLOAD_FILES = {"gsm8k": "gsm8k_train.jsonl", "fastchat": "fastchat_dummy_conversation.json"}


@dataclass(frozen=True)
class Release:
    """A release: its template, stop tokens, and the ids after which and until which a reply stands."""

    template: str
    stops: tuple[str, ...]
    header: tuple[str, ...]
    ends: tuple[str, ...]


RELEASES = {
    "gpt-oss": Release(
        "trl/gptoss.jinja",
        ("<|return|>", "<|call|>", "<|endoftext|>"),
        ("<|start|>", "assistant"),
        ("<|return|>", "<|end|>"),
    ),
    "qwen3": Release(
        "trl/qwen3.jinja",
        ("<|im_end|>", "<|endoftext|>"),
        ("<|im_start|>", "assistant", "Ċ"),
        ("<|im_end|>",),
    ),
    "deepseek-v4": Release(
        "crit-core/deepseek-v4.jinja",
        ("<｜end▁of▁sentence｜>",),
        ("<｜Assistant｜>", "</think>"),
        ("<｜end▁of▁sentence｜>",),
    ),
}


@dataclass(frozen=True)
class Expected:
    """What the check has to say."""

    outcome: Outcome
    rows: int
    turns: int
    undecided_rows: int = 0
    undecided_turns: int = 0


EXPECTED = {
    ("gpt-oss", "gsm8k"): Expected(Outcome.PASS, 7473, 7473),
    ("gpt-oss", "fastchat"): Expected(Outcome.PASS, 500, 1000),
    ("deepseek-v4", "gsm8k"): Expected(Outcome.PASS, 7473, 7473),
    ("deepseek-v4", "fastchat"): Expected(Outcome.PASS, 500, 1000),
    ("qwen3", "gsm8k"): Expected(Outcome.PASS, 7473, 7473),
    # Qwen3's history drops <think>: every reply but the last of the 333 chats with several replies.
    ("qwen3", "fastchat"): Expected(Outcome.INCONCLUSIVE, 500, 1000, 333, 500),
}


class FixedClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return DATE


def chats(workload: str) -> list[list[dict[str, str]]]:
    text = (WORKLOADS / WORKLOAD_FILES[workload]).read_text(encoding="utf-8")
    if workload == "gsm8k":
        rows = [json.loads(line) for line in text.splitlines()]
        return [
            [{"role": "user", "content": r["question"]}, {"role": "assistant", "content": r["answer"]}]
            for r in rows
        ]
    roles = {"human": "user", "gpt": "assistant"}
    return [
        [{"role": roles[m["from"]], "content": m["value"]} for m in row["conversations"]]
        for row in json.loads(text)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


def release_folder(folder: Path, name: str) -> Path:
    """The official tokenizer with the template and the stop ids beside it."""
    target, release = folder / name, RELEASES[name]
    if not target.is_dir():
        target.mkdir()
        (target / "tokenizer.json").symlink_to(tokenizer_json(name))
        for file, source in (
            ("tokenizer_config.json", TOKENIZERS / name / "tokenizer_config.json"),
            ("chat_template.jinja", TEMPLATES / release.template),
        ):
            (target / file).write_bytes(source.read_bytes())
        vocabulary = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        ids = {token["content"]: token["id"] for token in vocabulary}
        stops = {"eos_token_id": [ids[text] for text in release.stops]}
        (target / "generation_config.json").write_text(json.dumps(stops), encoding="utf-8")
    return target


@cache
def their_tokenizer(path: Path, name: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    special = {"deepseek-v4": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}}
    loaded = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), **special.get(name, {}))
    loaded.chat_template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return loaded


def labels_by_ids(tokenizer: Any, release: Release, ids: list[int]) -> list[int]:
    """A labeller of its own: from a reply's header to its end token, by ids alone."""
    header = tokenizer.convert_tokens_to_ids(list(release.header))
    ends = set(tokenizer.convert_tokens_to_ids(list(release.ends)))
    labels, on, at = [-100] * len(ids), False, 0
    while at < len(ids):
        if on:
            labels[at] = ids[at]
            on = ids[at] not in ends
            at += 1
        elif ids[at : at + len(header)] == header:
            on, at = True, at + len(header)
        else:
            at += 1
    return labels


@pytest.fixture(scope="module")
def dumps(folder: Path) -> Any:
    """Path of the dump of a release and a workload, made once by transformers."""
    from transformers.utils import chat_template_utils

    patch = pytest.MonkeyPatch()
    patch.setattr(chat_template_utils, "datetime", FixedClock)

    @cache
    def made(name: str, workload: str) -> Path:
        tokenizer = their_tokenizer(release_folder(folder, name), name)
        encoded = tokenizer.apply_chat_template(chats(workload), tokenize=True, return_dict=True)["input_ids"]
        path = folder / f"{name}-{workload}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for ids in encoded:
                row = {"input_ids": ids, "labels": labels_by_ids(tokenizer, RELEASES[name], ids)}
                file.write(json.dumps(row) + "\n")
        return path

    yield made
    patch.undo()


def inputs(folder: Path, dumps: Any, name: str, workload: str) -> DataInputs:
    return DataInputs(
        model=release_folder(folder, name),
        workload=WORKLOADS / WORKLOAD_FILES[workload],
        rows=dumps(name, workload),
        date=DATE.date().isoformat(),
    )


def part(parts: Any, name: str) -> Part:
    return next(part for part in parts if part.name == name)


@pytest.mark.parametrize(("name", "workload"), list(EXPECTED))
def test_each_template_and_workload_has_its_stated_outcome(
    folder: Path, dumps: Any, name: str, workload: str
) -> None:
    expected = EXPECTED[name, workload]
    verdict = evaluate(CHECK, inputs(folder, dumps, name, workload))
    assert verdict.outcome is expected.outcome, verdict.reason
    for ids in ("ids/content", "ids/order", "ids/truncation", "ids/coverage"):
        assert part(verdict.parts, ids).outcome is Outcome.PASS
        assert part(verdict.parts, ids).coverage.judged == expected.rows  # type: ignore[union-attr]
    labels = part(verdict.parts, "labels")
    measured = {m.name: m.value for m in labels.measurements if m.where is None}
    assert measured["rows with an undecided turn"] == expected.undecided_rows
    assert labels.coverage is not None
    assert (labels.coverage.total, labels.coverage.total - labels.coverage.judged) == (
        expected.turns,
        expected.undecided_turns,
    )
    assert measured["turns confirmed by the second reference"] == labels.coverage.judged
    results = {injection.fault: injection.result for injection in verdict.injected}
    for fault in ("packed boundary ignored", "token lost where a row is cut"):
        assert results.pop(fault) is Caught.NOT_APPLICABLE
    assert set(results.values()) == {Caught.CAUGHT}


# --- mask faults, planted in the full workload's case ------------------------------------------------------


@pytest.fixture(scope="module")
def small_cases(folder: Path, dumps: Any) -> Any:
    """Forty rows from the middle of a workload, opened once."""

    @cache
    def opened(name: str, workload: str, start: int) -> DataCase:
        given = inputs(folder, dumps, name, workload)
        some, rows = folder / f"{name}-{workload}-some-chats.jsonl", folder / f"{name}-{workload}-some.jsonl"
        lines = [json.dumps({"messages": chat}) for chat in chats(workload)[start : start + 40]]
        some.write_text("\n".join(lines), encoding="utf-8")
        lines = given.rows.read_text(encoding="utf-8").splitlines()[start : start + 40]
        rows.write_text("\n".join(lines), encoding="utf-8")
        return CHECK.open(given.model_copy(update={"workload": some, "rows": rows}), silent)

    return opened


def with_labels(case: DataCase, row: int, change: Any) -> DataCase:
    """The case with one document's labels changed; ``change`` gets ids and labels and returns labels."""
    documents = list(case.rows.documents)
    old: Document = documents[row]
    assert old.sequence.labels is not None
    labels = change(old.sequence.ids, old.sequence.labels.copy())
    documents[row] = replace(old, sequence=replace(old.sequence, labels=labels.astype(np.int32)))
    return replace(case, rows=replace(case.rows, documents=tuple(documents)))


def last_reply(labels: Any) -> int:
    """Where the last reply begins: Qwen3's earlier ones are undecided."""
    on = labels != -100
    return int(np.flatnonzero(on & ~np.append(False, on[:-1]))[-1])


def user_supervised(ids: Any, labels: Any) -> Any:
    first = last_reply(labels)
    labels[first - 8 : first - 2] = ids[first - 8 : first - 2]
    return labels


def header_supervised(ids: Any, labels: Any) -> Any:
    first = last_reply(labels)
    labels[first - 2 : first] = ids[first - 2 : first]
    return labels


def first_token_masked(ids: Any, labels: Any) -> Any:
    labels[last_reply(labels)] = -100
    return labels


def stop_masked(ids: Any, labels: Any) -> Any:
    labels[int(np.flatnonzero(labels != -100)[-1])] = -100
    return labels


def off_by_one(ids: Any, labels: Any) -> Any:
    return np.append(labels[1:], -100)


def everything(ids: Any, labels: Any) -> Any:
    return ids.copy()


def nothing(ids: Any, labels: Any) -> Any:
    return np.full_like(labels, -100)


FAULTS = {
    user_supervised: ("labels", "token-wrongly-supervised"),
    header_supervised: ("labels", "token-wrongly-supervised"),
    first_token_masked: ("labels", "token-not-supervised"),
    stop_masked: ("stop", "stop-unlabelled"),
    off_by_one: ("labels", "labels-shifted"),
    everything: ("labels", "token-wrongly-supervised"),
    nothing: ("labels", "no-supervised-token"),
}


@pytest.mark.parametrize("fault", list(FAULTS), ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("workload", "start"), [("gsm8k", 4700), ("fastchat", 301)])
@pytest.mark.parametrize("name", list(RELEASES))
def test_each_planted_mask_fault_is_found_in_its_row_alone(
    small_cases: Any, name: str, workload: str, start: int, fault: Any
) -> None:
    case = small_cases(name, workload, start)
    row = next(
        n
        for n, row in enumerate(case.rows.rows)
        if n > 20 and len(row.turns) == (1 if workload == "gsm8k" else 3)
    )
    parts = CHECK.judge(with_labels(case, row, fault), silent)
    failed = {
        (part.name, problem.code, problem.place.row)
        for part in parts
        for problem in part.problems
        if problem.outcome is Outcome.FAIL
    }
    assert (*FAULTS[fault], row) in failed
    assert {place for _, _, place in failed} == {row}
    assert {name for name, _, _ in failed} <= {"labels", "stop"}


def test_a_fault_in_one_of_all_rows_is_found(folder: Path, dumps: Any) -> None:
    case = CHECK.open(inputs(folder, dumps, "gpt-oss", "gsm8k"), silent)
    parts = CHECK.judge(with_labels(case, 6000, first_token_masked), silent)
    assert [(p.code, p.place.row, p.place.turn) for p in part(parts, "labels").problems] == [
        ("token-not-supervised", 6000, 1)
    ]
    assert {injection.result for injection in inject(CHECK, case)} == {Caught.CAUGHT, Caught.NOT_APPLICABLE}


def test_the_last_turn_alone_is_decided_for_qwen3(folder: Path, dumps: Any) -> None:
    given = inputs(folder, dumps, "qwen3", "fastchat")
    last = folder / "last.jsonl"
    end = their_tokenizer(release_folder(folder, "qwen3"), "qwen3").convert_tokens_to_ids("<|im_end|>")
    with last.open("w", encoding="utf-8") as file:
        for line in given.rows.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            ends = [n for n, label in enumerate(row["labels"]) if label == end]
            if len(ends) > 1:
                row["labels"][: ends[-2] + 1] = [-100] * (ends[-2] + 1)
            file.write(json.dumps(row) + "\n")
    verdict = evaluate(CHECK, given.model_copy(update={"rows": last, "supervise": "last"}))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert str(part(verdict.parts, "labels").coverage) == "500 of 500 turns"


def test_the_masks_of_a_training_template_pass_where_its_text_is_the_releases(folder: Path) -> None:
    """TRL's patched Qwen3 template with transformers' own mask: other ids in several turns, equal in one."""
    path = release_folder(folder, "qwen3")
    tokenizer = their_tokenizer(path, "qwen3")
    template = (TEMPLATES / "trl/qwen3_training.jinja").read_text(encoding="utf-8")
    for workload, outcome in (("gsm8k", Outcome.PASS), ("fastchat", Outcome.FAIL)):
        some = chats(workload)[:300]
        encoded = tokenizer.apply_chat_template(
            some, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        rows, listed = folder / f"trl-{workload}.jsonl", folder / f"trl-{workload}-chats.jsonl"
        listed.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in some), encoding="utf-8")
        rows.write_text(
            "".join(
                json.dumps({"input_ids": ids, "assistant_masks": mask}) + "\n"
                for ids, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
            ),
            encoding="utf-8",
        )
        verdict = evaluate(CHECK, DataInputs(model=path, workload=listed, rows=rows))
        assert verdict.outcome is outcome, verdict.reason
        several = sum(len(chat) > 2 for chat in some)
        assert part(verdict.parts, "ids/content").problem_count == several
