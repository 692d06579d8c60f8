"""Packing that cuts documents across sequences, in the data check: one stream, sliced at a length."""

import random
from pathlib import Path
from typing import Any

import pytest

from checks.verdict import Caught, Outcome, Verdict
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, pad, part
from tests.checks.tiny_release import WORKLOAD, write_release, write_workload

LENGTH = 50
"""Shorter than some rows, longer than others: a slice holds parts of one to three rows."""


def wrapped(rows: list[Row], length: int = LENGTH, batch: int | None = None) -> list[Row]:
    """Slices of the rows' stream; every ``batch`` rows a new stream begins, as where data sets are mapped."""
    if batch is not None:
        batches = (wrapped(rows[start : start + batch], length) for start in range(0, len(rows), batch))
        return [each for some in batches for each in some]
    stream = {name: [value for each in rows for value in each[name]] for name in ("input_ids", "labels")}
    total = len(stream["input_ids"])
    return [
        {name: values[start : start + length] for name, values in stream.items()}
        for start in range(0, total, length)
    ]


def check(tmp_path: Path, release: Path, dump: list[Row], **inputs: Any) -> Verdict:
    return judged(tmp_path, release, dump, **{"packing": "wrapped", "max_length": LENGTH} | inputs)


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("length", [LENGTH, 40, 200])
def test_rows_that_are_cut_across_sequences_pass(
    tmp_path: Path, release: Path, rows: list[Row], length: int, batch: int | None
) -> None:
    verdict = check(tmp_path, release, wrapped(rows, length, batch), max_length=length)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert str(part(verdict, "labels").coverage) == "18 of 18 turns"
    assert str(part(verdict, "ids/content").coverage) == "12 of 12 rows"
    results = {injection.fault: injection.result for injection in verdict.injected}
    assert results.pop("packed boundary ignored") is Caught.NOT_APPLICABLE
    assert set(results.values()) == {Caught.CAUGHT}


def test_other_packing_is_not_mistaken_for_it(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    for packing in ("none", "documents"):
        assert check(tmp_path, release, wrapped(rows), packing=packing).outcome is Outcome.FAIL


@pytest.mark.parametrize("seed", range(4))
def test_sequences_in_any_order_and_on_any_rank_pass(
    tmp_path: Path, release: Path, rows: list[Row], seed: int
) -> None:
    dump = [each | {"epoch": epoch} for epoch in (1, 2) for each in wrapped(rows)]
    random.Random(seed).shuffle(dump)
    dump = [each | {"rank": number % 2} for number, each in enumerate(dump)]
    verdict = check(tmp_path, release, dump, shuffle=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert part(verdict, "ids/epochs").outcome is Outcome.PASS


def test_rows_shuffled_before_they_are_packed(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    random.Random(3).shuffle(rows)
    dump = wrapped(rows)
    assert check(tmp_path, release, dump, shuffle=True).outcome is Outcome.PASS
    random.Random(1).shuffle(dump)
    verdict = check(tmp_path, release, dump, shuffle=True)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "cannot be put together again" in verdict.reason


@pytest.mark.parametrize("mask", [False, True])
def test_the_padded_last_sequence_passes(tmp_path: Path, release: Path, rows: list[Row], mask: bool) -> None:
    dump = wrapped(rows)
    if mask:
        dump = [each | {"attention_mask": [1] * len(each["input_ids"])} for each in dump]
    dump[-1] = pad({k: v for k, v in dump[-1].items() if k != "attention_mask"}, LENGTH, mask=mask)
    assert check(tmp_path, release, dump).outcome is Outcome.PASS


def test_padding_with_the_stop_token_hides_no_stop(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(
        tmp_path / "release", tiny_release.TEMPLATE.replace("<|end|>\n", "<|end|>"), pad="<|end|>"
    )
    newline, end = (tiny_release.tokenizer().token_to_id(text) for text in ("Ċ", "<|end|>"))
    for each in rows:
        kept = [
            n
            for n, token in enumerate(each["input_ids"])
            if not (token == newline and each["input_ids"][n - 1] == end)
        ]
        each |= {name: [each[name][n] for n in kept] for name in ("input_ids", "labels")}
    dump = wrapped(rows)
    dump[-1] = pad(dump[-1], LENGTH, "<|end|>")
    assert check(tmp_path, release, dump).outcome is Outcome.PASS


def test_a_lost_stop_token_is_found_in_the_row_that_is_cut(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    stop = tiny_release.tokenizer().token_to_id("<|end|>")
    dump = wrapped(rows)
    at = max(n for n, label in enumerate(dump[3]["labels"]) if label == stop)
    dump[3]["labels"][at] = -100
    verdict = check(tmp_path, release, dump)
    assert failures(verdict) == {"labels": {"token-not-supervised"}, "stop": {"stop-unlabelled"}}
    place = part(verdict, "stop").problems[0].place
    assert place.sequence == 3
    assert place.row is not None
    ends = [len(each["input_ids"]) for each in rows]
    assert sum(ends[: place.row]) + (place.token or 0) == 3 * LENGTH + at


def test_a_token_lost_between_two_slices_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    stream = wrapped(rows, 10**6)[0]
    dump = [
        {name: values[start : start + LENGTH] for name, values in stream.items()}
        for start in range(0, len(stream["input_ids"]), LENGTH + 1)
    ]
    verdict = check(tmp_path, release, dump)
    assert "content-differs" in failures(verdict)["ids/content"]


def test_a_dropped_sequence_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = wrapped(rows)
    del dump[4]
    verdict = check(tmp_path, release, dump)
    assert verdict.outcome is Outcome.FAIL
    wrong = {problem.place.row for name, problem in verdict.problems() if name.startswith("ids/")}
    ends = [sum(len(each["input_ids"]) for each in rows[: n + 1]) for n in range(len(rows))]
    touched = {n for n, end in enumerate(ends) if end > 4 * LENGTH and (ends[n - 1] if n else 0) < 5 * LENGTH}
    assert wrong
    assert wrong <= touched


def test_a_dropped_remainder_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = wrapped(rows)[:-1]
    found = failures(check(tmp_path, release, dump))
    assert found.keys() & {"ids/content", "ids/truncation"}


def test_a_repeated_sequence_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = wrapped(rows)
    verdict = check(tmp_path, release, [*dump, dump[0]], shuffle=True)
    assert failures(verdict) == {"ids/coverage": {"row-repeated"}}
    assert part(verdict, "ids/coverage").problems[0].place.sequence == len(dump)


def test_a_doubled_first_token_of_every_row_is_named(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    doubled = [
        {"input_ids": each["input_ids"][:1] + each["input_ids"], "labels": [-100, *each["labels"]]}
        for each in rows
    ]
    assert failures(check(tmp_path, release, wrapped(doubled))) == {"ids/content": {"double-bos"}}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("at", [0, 20, LENGTH - 1])
def test_one_changed_token_is_found_at_its_place(
    tmp_path: Path, release: Path, rows: list[Row], shuffle: bool, at: int
) -> None:
    dump = wrapped(rows)
    dump[2]["input_ids"][at] = tiny_release.tokenizer().token_to_id("<|stop|>")
    dump[2]["labels"][at] = -100
    verdict = check(tmp_path, release, dump, shuffle=shuffle)
    assert failures(verdict) == {"ids/content": {"content-differs"}}
    (problem,) = part(verdict, "ids/content").problems
    assert problem.place.sequence == 2


def test_sequences_longer_than_the_slice_and_rows_never_packed_differ(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    verdict = check(tmp_path, release, wrapped(rows, 90))
    assert failures(verdict) == {"ids/packing": {"packing-differs"}}
    assert failures(check(tmp_path, release, rows, max_length=400)) == {"ids/packing": {"packing-differs"}}


def test_positions_count_slices_or_documents(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = wrapped(rows)
    begin = tiny_release.tokenizer().token_to_id("<s>")
    by_slice = [each | {"position_ids": list(range(len(each["input_ids"])))} for each in dump]
    by_document = []
    for each in dump:
        positions: list[int] = []
        for token in each["input_ids"]:
            positions.append(0 if token == begin or not positions else positions[-1] + 1)
        by_document.append(each | {"position_ids": positions})
    for right in (by_slice, by_document):
        assert check(tmp_path, release, right).outcome is Outcome.PASS
    by_slice[1]["position_ids"] = [n + 1 for n in by_slice[1]["position_ids"]]
    verdict = check(tmp_path, release, by_slice)
    assert failures(verdict) == {"ids/packing": {"positions-differ"}}


def test_shifted_labels_that_name_the_next_slices_first_token_pass(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    stream = wrapped(rows, 10**6)[0]
    ahead = [*stream["labels"][1:], -100]
    dump = [
        {"input_ids": stream["input_ids"][at : at + LENGTH], "labels": ahead[at : at + LENGTH]}
        for at in range(0, len(ahead), LENGTH)
    ]
    verdict = check(tmp_path, release, dump, labels="shifted")
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_rows_that_end_at_their_stop_token_pass(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    ended = [{name: values[:-1] for name, values in each.items()} for each in rows]
    assert check(tmp_path, release, wrapped(ended)).outcome is Outcome.PASS


def test_supervised_tokens_without_context_are_counted(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = wrapped(rows)
    first = sum(each["labels"][0] != -100 for each in dump)
    assert first
    notes = " ".join(part(check(tmp_path, release, dump), "labels").notes)
    assert f"{first} supervised tokens stand first in a sequence" in notes


@pytest.mark.parametrize("batch", [None, 7])
def test_many_rows_with_equal_texts_raise_no_alarm(tmp_path: Path, release: Path, batch: int | None) -> None:
    chats = [WORKLOAD[n % 3] for n in range(60)]
    rows = [tiny_release.row(chat) for chat in chats]
    workload = write_workload(tmp_path / "many.jsonl", chats)
    dump = wrapped(rows, batch=batch)
    verdict = check(tmp_path, release, dump, workload=workload)
    assert verdict.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE), verdict.reason
    random.Random(0).shuffle(dump)
    verdict = check(tmp_path, release, dump, workload=workload, shuffle=True)
    assert verdict.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE), verdict.reason
    dump.append(dump[0])
    verdict = check(tmp_path, release, dump, workload=workload, shuffle=True)
    assert verdict.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE), verdict.reason
