"""The data check on a tiny release: clean rows pass; each fault is found at its place and nowhere else."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.check import evaluate
from checks.data import CHECK, DataInputs
from checks.errors import BadInput
from checks.verdict import Caught, Outcome, Part, Problem, Verdict
from tests.checks import tiny_release
from tests.checks.tiny_release import WORKLOAD, write_record, write_release, write_rows, write_workload

Row = dict[str, Any]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def clean() -> list[Row]:
    return tiny_release.rows()


@pytest.fixture
def rows(clean: list[Row]) -> list[Row]:
    return copy.deepcopy(clean)


def judged(tmp_path: Path, release: Path, dump: list[Row] | Path, **inputs: Any) -> Verdict:
    workload = inputs.pop("workload", None) or write_workload(tmp_path / "workload.jsonl")
    path = dump if isinstance(dump, Path) else write_rows(tmp_path / "rows.jsonl", dump)
    return evaluate(CHECK, DataInputs(model=release, workload=workload, rows=path, **inputs))


def part(verdict: Verdict, name: str) -> Part:
    return next(part for part in verdict.parts if part.name == name)


def failures(verdict: Verdict) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, problem in verdict.problems():
        if problem.outcome is Outcome.FAIL:
            found.setdefault(name, set()).add(problem.code)
    return found


def only(verdict: Verdict, name: str, code: str) -> Problem:
    """The first problem, after asserting that this code in this part is the only failure."""
    assert failures(verdict) == {name: {code}}
    assert verdict.outcome is Outcome.FAIL
    return part(verdict, name).problems[0]


def test_a_clean_single_pass_dump_passes(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    unjudged = [part.name for part in verdict.parts if not part.applicable]
    assert unjudged == ["ids/packing", "ids/epochs"]
    assert str(part(verdict, "labels").coverage) == "18/18 turns"
    results = {injection.fault: injection.result for injection in verdict.injected}
    assert results.pop("packed boundary ignored") is Caught.NOT_APPLICABLE
    assert set(results.values()) == {Caught.CAUGHT}


def test_settings_and_evidence_are_in_the_verdict(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, rows, template_kwargs={"thinking": True}, max_length=4096)
    assert verdict.settings["template_kwargs"] == {"thinking": True}
    assert verdict.settings["max_length"] == 4096
    assert verdict.settings["stop_tokens"] == "'<|end|>'"
    assert {evidence.role for evidence in verdict.evidence} == {"workload", "release", "rows"}


def test_rows_in_record_layout_with_two_epochs_pass(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"epoch": epoch} for epoch in (1, 2) for each in rows]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert part(verdict, "ids/epochs").outcome is Outcome.PASS


# --- ids ---------------------------------------------------------------------------------------------------


def test_a_changed_token_is_content_at_row_and_token(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[3]["input_ids"][5] += 1
    problem = only(judged(tmp_path, release, rows), "ids/content", "content-differs")
    assert (problem.place.row, problem.place.token) == (3, 5)


def test_a_doubled_begin_token_is_named(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    for each in rows:
        each["input_ids"].insert(0, each["input_ids"][0])
        each["labels"].insert(0, -100)
    verdict = judged(tmp_path, release, rows)
    problem = only(verdict, "ids/content", "double-bos")
    assert (problem.place.row, problem.place.token) == (0, 1)
    assert part(verdict, "ids/content").problem_count == len(rows)


def test_a_row_that_is_never_there_is_missing(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    del rows[4]
    problem = only(judged(tmp_path, release, rows), "ids/content", "row-missing")
    assert problem.place.row == 4


def test_a_row_that_one_epoch_lacks_is_dropped(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"epoch": epoch, "row_id": n} for epoch in (1, 2) for n, each in enumerate(rows)]
    del dump[4]
    problem = only(judged(tmp_path, release, dump), "ids/coverage", "row-dropped")
    assert (problem.place.row, problem.place.epoch) == (4, 1)


def test_a_row_that_comes_twice_is_repeated(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, [*rows, rows[2]], shuffle=True)
    assert only(verdict, "ids/coverage", "row-repeated").place.row == 2


def test_a_row_of_no_conversation_is_unexpected(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    extra = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
    assert (
        only(judged(tmp_path, release, [*rows, extra]), "ids/content", "row-unexpected").place.sequence == 12
    )


def test_a_row_id_outside_the_workload_is_unexpected(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"row_id": n} for n, each in enumerate(rows)] + [rows[0] | {"row_id": 99}]
    assert only(judged(tmp_path, release, dump), "ids/content", "row-unexpected").place.row == 99


def test_another_order_fails_unless_the_recipe_shuffles(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = rows[::-1]
    assert only(judged(tmp_path, release, dump), "ids/order", "order-differs").place.row == 10
    verdict = judged(tmp_path, release, dump, shuffle=True)
    assert verdict.outcome is Outcome.PASS
    assert not part(verdict, "ids/order").applicable


def test_rows_without_ids_are_found_by_their_tokens(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [rows[5], rows[1], *(each for n, each in enumerate(rows) if n not in (1, 5))]
    padded = [pad(each, 40) for each in dump]
    assert judged(tmp_path, release, padded, shuffle=True).outcome is Outcome.PASS


def test_a_row_cut_where_the_recipe_cuts_passes(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [{name: values[:64] for name, values in each.items()} for each in rows]
    verdict = judged(tmp_path, release, dump, max_length=64)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert (
        part(verdict, "ids/truncation").measurements[0].value
        == sum(len(r["input_ids"]) > 64 for r in rows)
        > 0
    )


def test_a_row_cut_elsewhere_is_truncation(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[2] = {name: values[:-6] for name, values in rows[2].items()}
    problem = only(judged(tmp_path, release, rows), "ids/truncation", "truncation-differs")
    assert problem.place.row == 2


def test_a_row_cut_on_the_left_is_truncation(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[1] = {name: values[4:] for name, values in rows[1].items()}
    problem = only(judged(tmp_path, release, rows), "ids/truncation", "truncation-differs")
    assert "cut on the left" in problem.message


def test_a_row_longer_than_the_maximum_is_truncation(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, rows, max_length=40)
    assert "truncation-differs" in failures(verdict)["ids/truncation"]


def test_the_templates_padding_after_the_last_stop_may_be_missing(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{name: values[:-1] for name, values in each.items()} for each in rows]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS


def test_a_later_epoch_with_other_tokens_differs(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [
        copy.deepcopy(each) | {"epoch": epoch, "row_id": n} for epoch in (1, 2) for n, each in enumerate(rows)
    ]
    dump[-1]["input_ids"][4] += 1
    problem = only(judged(tmp_path, release, dump), "ids/epochs", "epoch-differs")
    assert (problem.place.row, problem.place.epoch) == (11, 2)


def test_a_later_epoch_with_other_labels_differs(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [copy.deepcopy(each) | {"epoch": epoch} for epoch in (1, 2) for each in rows]
    dump[13]["labels"] = [-100] * len(dump[13]["labels"])
    assert only(judged(tmp_path, release, dump), "ids/epochs", "epoch-differs").place.row == 1


# --- padding and packing -----------------------------------------------------------------------------------


def pad(each: Row, length: int, filler: str = "<pad>", *, left: bool = False, mask: bool = False) -> Row:
    missing = length - len(each["input_ids"])
    if missing <= 0:
        return each
    pads = [tiny_release.tokenizer().token_to_id(filler)] * missing
    real = len(each["input_ids"])
    join = (lambda new, old: new + old) if left else (lambda new, old: old + new)
    padded = {"input_ids": join(pads, each["input_ids"]), "labels": join([-100] * missing, each["labels"])}
    return padded | ({"attention_mask": join([0] * missing, [1] * real)} if mask else {})


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_padding_on_either_side_passes(
    tmp_path: Path, release: Path, rows: list[Row], left: bool, mask: bool
) -> None:
    dump = [pad(each, 120, left=left, mask=mask) for each in rows]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_padding_with_the_stop_token_passes_and_its_mask_does_not_hide_the_stop(
    tmp_path: Path, rows: list[Row]
) -> None:
    release = write_release(tmp_path / "release", pad="<|end|>")
    dump = [pad(each, 120, "<|end|>") for each in rows]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS
    stop = tiny_release.tokenizer().token_to_id("<|end|>")
    for each in dump:
        each["labels"] = [
            -100 if token == stop else label
            for token, label in zip(each["input_ids"], each["labels"], strict=True)
        ]
    found = failures(judged(tmp_path, release, dump))
    assert found == {"labels": {"token-not-supervised"}, "stop": {"stop-unlabelled"}}


def test_supervised_padding_is_wrongly_supervised(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [pad(each, 120) for each in rows]
    dump[6]["labels"] = [
        label if label != -100 or n < 100 else dump[6]["input_ids"][n]
        for n, label in enumerate(dump[6]["labels"])
    ]
    problem = only(judged(tmp_path, release, dump), "labels", "token-wrongly-supervised")
    assert problem.place.row == 6
    assert "padding" in problem.message


def packed(rows: list[Row], size: int = 3) -> list[Row]:
    dump = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        dump.append(
            {
                "input_ids": [token for each in some for token in each["input_ids"]],
                "labels": [label for each in some for label in each["labels"]],
                "position_ids": [n for each in some for n in range(len(each["input_ids"]))],
                "seq_lens": [len(each["input_ids"]) for each in some],
                "row_ids": list(range(start, start + len(some))),
            }
        )
    return dump


def test_packed_rows_that_keep_their_edges_pass(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, packed(rows), packing="documents")
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert {injection.result for injection in verdict.injected} == {Caught.CAUGHT}


def test_packed_rows_are_cut_where_nothing_says_so(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [{k: v for k, v in each.items() if k not in ("seq_lens", "row_ids")} for each in packed(rows)]
    assert judged(tmp_path, release, dump, packing="documents").outcome is Outcome.PASS


@pytest.mark.parametrize("known", [True, False])
def test_positions_that_run_on_ignore_the_boundary(
    tmp_path: Path, release: Path, rows: list[Row], known: bool
) -> None:
    dump = packed(rows)
    for each in dump:
        each["position_ids"] = list(range(len(each["input_ids"])))
        if not known:
            del each["seq_lens"], each["row_ids"]
    problem = only(judged(tmp_path, release, dump, packing="documents"), "ids/packing", "boundary-ignored")
    assert (problem.place.row, problem.place.sequence, problem.place.token) == (
        None,
        0,
        0,
    ) or problem.place.row == 1


def test_packed_rows_without_positions_are_not_evaluated(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{k: v for k, v in each.items() if k != "position_ids"} for each in packed(rows)]
    verdict = judged(tmp_path, release, dump, packing="documents")
    assert part(verdict, "ids/packing").outcome is Outcome.NOT_EVALUATED
    assert verdict.outcome is Outcome.NOT_EVALUATED


def test_packed_rows_fail_where_the_recipe_packs_none(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    assert "packing-differs" in failures(judged(tmp_path, release, packed(rows)))["ids/packing"]


# --- labels ------------------------------------------------------------------------------------------------


def reply(each: Row) -> list[int]:
    return [n for n, label in enumerate(each["labels"]) if label != -100]


def test_an_unsupervised_reply_token_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    first = reply(rows[1])[1]
    rows[1]["labels"][first] = -100
    problem = only(judged(tmp_path, release, rows), "labels", "token-not-supervised")
    assert (problem.place.row, problem.place.turn, problem.place.token) == (1, 1, first)


def test_a_supervised_user_turn_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[1]["labels"][4:7] = rows[1]["input_ids"][4:7]
    problem = only(judged(tmp_path, release, rows), "labels", "token-wrongly-supervised")
    assert (problem.place.row, problem.place.turn, problem.place.token) == (1, 0, 4)
    assert "user turn" in problem.message


def test_a_supervised_assistant_header_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    header = reply(rows[1])[0] - 2
    rows[1]["labels"][header : header + 2] = rows[1]["input_ids"][header : header + 2]
    problem = only(judged(tmp_path, release, rows), "labels", "token-wrongly-supervised")
    assert problem.place.token == header
    assert "header" in problem.message


def test_the_line_break_after_the_stop_token_is_accepted(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    for each in rows:
        after = reply(each)[-1] + 1
        each["labels"][after] = each["input_ids"][after]
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.PASS
    measured = {m.name: m.value for m in part(verdict, "labels").measurements}
    assert measured["supervised tokens accepted either way"] == len(rows)


def test_labels_that_are_one_ahead_are_shifted(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"labels": [*each["labels"][1:], -100]} for each in rows]
    verdict = judged(tmp_path, release, dump)
    assert "labels-shifted" in failures(verdict)["labels"]
    assert part(verdict, "labels").problems[0].next_step
    assert judged(tmp_path, release, dump, labels="shifted").outcome is Outcome.PASS


@pytest.mark.parametrize("step", [1, -1])
def test_a_mask_that_is_off_by_one_is_shifted(
    tmp_path: Path, release: Path, rows: list[Row], step: int
) -> None:
    for each in rows:
        on = np.roll(np.array(each["labels"]) != -100, step)
        each["labels"] = np.where(on, each["input_ids"], -100).tolist()
    assert failures(judged(tmp_path, release, rows))["labels"] == {"labels-shifted"}


def test_inputs_without_their_last_token_and_shifted_labels_pass(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{"input_ids": each["input_ids"][:-1], "labels": each["labels"][1:]} for each in rows]
    assert judged(tmp_path, release, dump, labels="shifted").outcome is Outcome.PASS


def test_a_label_that_names_another_token_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    place = reply(rows[1])[0]
    rows[1]["labels"][place] += 1
    problem = only(judged(tmp_path, release, rows), "labels", "token-wrongly-supervised")
    assert (problem.place.row, problem.place.token) == (1, place)


def test_an_unlabelled_stop_token_is_never_taught(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    stop = reply(rows[1])[-1]
    rows[1]["labels"][stop] = -100
    verdict = judged(tmp_path, release, rows)
    assert failures(verdict) == {"labels": {"token-not-supervised"}, "stop": {"stop-unlabelled"}}
    problem = part(verdict, "stop").problems[0]
    assert (problem.place.row, problem.place.turn, problem.place.token) == (1, 1, stop)


def test_without_stop_ids_in_the_release_the_stop_part_does_not_apply(
    tmp_path: Path, rows: list[Row]
) -> None:
    release = write_release(tmp_path / "release", stops=None)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.PASS
    assert not part(verdict, "stop").applicable


def test_the_last_reply_alone_is_a_recipe_setting(tmp_path: Path, release: Path) -> None:
    dump = tiny_release.rows("last")
    assert judged(tmp_path, release, dump, supervise="last").outcome is Outcome.PASS
    found = failures(judged(tmp_path, release, dump))
    assert found == {"labels": {"token-not-supervised"}, "stop": {"stop-unlabelled"}}
    assert failures(judged(tmp_path, release, tiny_release.rows(), supervise="last")) == {
        "labels": {"token-wrongly-supervised"}
    }


def test_a_row_with_nothing_supervised_is_named_as_such(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    rows[3]["labels"] = [-100] * len(rows[3]["labels"])
    verdict = judged(tmp_path, release, rows)
    assert failures(verdict)["labels"] == {"no-supervised-token"}
    assert part(verdict, "labels").problems[0].place.row == 3


def test_a_cut_that_leaves_nothing_to_supervise_fails_and_may_be_left_out(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{name: values[:20] for name, values in each.items()} for each in rows]
    verdict = judged(tmp_path, release, dump, max_length=20)
    assert failures(verdict) == {"labels": {"no-supervised-token"}}
    kept = [each for each in dump if any(label != -100 for label in each["labels"])]
    if kept:
        assert judged(tmp_path, release, kept, max_length=20).outcome is Outcome.PASS


def test_a_next_header_is_the_stop_token_where_the_release_says_so(tmp_path: Path) -> None:
    release = write_release(tmp_path / "release", tiny_release.GLM_LIKE, ["<|user|>", "<|stop|>"])
    made = tiny_release.tokenizer()
    dump = []
    for chat in WORKLOAD:
        each: Row = {"input_ids": [made.token_to_id("<s>")], "labels": [-100]}
        after_reply = False
        for message in chat:
            pieces = (
                (f"<|{message['role']}|>", after_reply),
                ("\n", False),
                (message["content"], message["role"] == "assistant"),
            )
            for text, on in pieces:
                new = made.encode(text, add_special_tokens=False).ids
                each["input_ids"] += new
                each["labels"] += new if on else [-100] * len(new)
            after_reply = message["role"] == "assistant"
        dump.append(each)
    verdict = judged(tmp_path, release, dump)
    assert failures(verdict) == {"stop": {"stop-unlabelled"}}, "the last reply has no header behind it"
    assert part(verdict, "stop").problem_count == len(WORKLOAD)
    end = made.token_to_id("<|user|>")
    ended = [{"input_ids": [*e["input_ids"], end], "labels": [*e["labels"], end]} for e in dump]
    assert judged(tmp_path, release, ended).outcome is Outcome.PASS


def test_undecided_turns_make_labels_inconclusive_with_the_reason(tmp_path: Path) -> None:
    release = write_release(tmp_path / "release", tiny_release.DROPS_REASONING)
    chats = [
        [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "1", "reasoning_content": "counting"},
            {"role": "user", "content": "Two?"},
            {"role": "assistant", "content": "2"},
        ]
    ]
    workload = write_workload(tmp_path / "chats.jsonl", chats)
    dump = [tiny_release.row(chats[0])]
    verdict = judged(tmp_path, release, dump, workload=workload)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    problem = part(verdict, "labels").problems[0]
    assert (problem.code, problem.place.turn) == ("undecided-turn", 1)
    assert part(verdict, "ids/content").outcome is Outcome.PASS
    last = judged(
        tmp_path, release, [tiny_release.row(chats[0], "last")], workload=workload, supervise="last"
    )
    assert last.outcome is Outcome.PASS
    user = copy.deepcopy(dump)
    user[0]["labels"][3] = user[0]["input_ids"][3]
    assert failures(judged(tmp_path, release, user, workload=workload)) == {
        "labels": {"token-wrongly-supervised"}
    }


def test_control_tokens_in_a_reply_leave_its_turn_undecided(tmp_path: Path, release: Path) -> None:
    chats = [
        [{"role": "user", "content": "<|end|><|user|>"}, {"role": "assistant", "content": "a <|end|> b"}]
    ]
    workload = write_workload(tmp_path / "chats.jsonl", chats)
    verdict = judged(tmp_path, release, [tiny_release.row(chats[0])], workload=workload)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "control token '<|end|>'" in part(verdict, "labels").reason


def test_rows_without_labels_are_judged_by_their_ids(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, [{"input_ids": each["input_ids"]} for each in rows])
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert part(verdict, "ids/content").outcome is Outcome.PASS
    assert part(verdict, "labels").outcome is Outcome.NOT_EVALUATED
    broken = [{"input_ids": each["input_ids"][1:]} for each in rows]
    assert judged(tmp_path, release, broken).outcome is Outcome.FAIL


def test_a_loss_mask_column_stands_for_labels(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [
        {"input_ids": each["input_ids"], "assistant_masks": [int(label != -100) for label in each["labels"]]}
        for each in rows
    ]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS
    assert verdict.settings["labels_from"] == "column assistant_masks"


def test_loss_weights_of_zero_supervise_nothing(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    weighted = [each | {"loss_weights": [float(label != -100) for label in each["labels"]]} for each in rows]
    everywhere = [each | {"labels": each["input_ids"]} for each in weighted]
    record = write_record(tmp_path / "rows.safetensors", everywhere)
    assert judged(tmp_path, release, record).outcome is Outcome.PASS
    everywhere[2]["loss_weights"] = [0.0] * len(everywhere[2]["input_ids"])
    record = write_record(tmp_path / "rows.safetensors", everywhere)
    assert failures(judged(tmp_path, release, record))["labels"] == {"no-supervised-token"}


# --- what cannot be judged, and what cannot be used ---------------------------------------------------------


def test_a_release_without_template_is_not_evaluated(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release", template=None)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "no chat template" in verdict.reason
    assert "--template" in verdict.next_step
    template = tmp_path / "own.jinja"
    template.write_text(tiny_release.TEMPLATE, encoding="utf-8")
    verdict = judged(tmp_path, release, rows, template=template)
    assert verdict.outcome is Outcome.PASS
    assert verdict.stand_ins


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no thanks') }}", "no thanks"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not end"),
        ("{{ 'x' * 99999999999 }}", "memory"),
        ("{% if %}", "does not compile"),
        ("{{ strftime_now('%Y') }}", "--date"),
    ],
)
def test_a_template_that_gives_no_text_is_not_evaluated(
    tmp_path: Path, rows: list[Row], template: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.references.rendering.RENDER_SECONDS", 0.2)
    release = write_release(tmp_path / "release", template)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert words in f"{verdict.reason} {verdict.next_step}"


def test_a_template_that_refuses_one_row_leaves_that_row_inconclusive(
    tmp_path: Path, rows: list[Row]
) -> None:
    condition = "messages|length == 2 and '7' in messages[0].content"
    refusing = "{% if " + condition + " %}{{ raise_exception('seven') }}{% endif %}"
    release = write_release(tmp_path / "release", refusing + tiny_release.TEMPLATE)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert {(p.code, p.place.row) for p in part(verdict, "ids/content").problems} == {("not-rendered", 7)}


def test_a_release_without_tokenizer_is_not_evaluated(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release")
    (release / "tokenizer.json").unlink()
    assert "tokenizer.json" in judged(tmp_path, release, rows).reason
    (release / "tokenizer.json").write_text("{", encoding="utf-8")
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "is no tokenizer" in verdict.reason


def test_no_rows_at_all_is_not_evaluated(tmp_path: Path, release: Path) -> None:
    verdict = judged(tmp_path, release, [])
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "0 rows" in verdict.reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"input_ids": [1, 2', "line 2 is not valid JSON"),
        ('{"input_ids": [1, NaN]}', "NaN is no JSON value"),
        ('{"input_ids": [1, 99999999999]}', "99999999999"),
        ('{"input_ids": [1, 2.5]}', "item 1 is '2.5'"),
        ('{"input_ids": [1, true]}', "'True'"),
        ('{"input_ids": [[1], [2]]}', "no flat list"),
        ('{"input_ids": [1, 2], "labels": [1]}', "1 values for 2 tokens"),
        ('{"ids": [1, 2]}', "has no input_ids"),
        ('{"input_ids": [1, 2], "row_id": "seven"}', "row_id is 'seven'"),
        ('{"input_ids": [1, 2], "seq_lens": [2, 2]}', "seq_lens add up to 4"),
    ],
)
def test_a_row_that_does_not_fit_is_a_usage_error_naming_its_line(
    tmp_path: Path, release: Path, line: str, words: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [1], "labels": [-100]}\n' + line, encoding="utf-8")
    with pytest.raises(BadInput) as error:
        judged(tmp_path, release, path)
    assert words in error.value.message
    assert "line 2" in error.value.message


@pytest.mark.parametrize("token", [-5, 2_000_000_000])
def test_ids_outside_the_vocabulary_are_content(
    tmp_path: Path, release: Path, rows: list[Row], token: int
) -> None:
    rows[2]["input_ids"][3] = token
    rows[2]["labels"] = [-100] * len(rows[2]["labels"])
    problem = only(judged(tmp_path, release, rows), "ids/content", "content-differs")
    assert (problem.place.row, problem.place.token) == (2, 3)
    assert str(token) in (problem.found or "")


def test_an_unknown_framework_or_date_is_a_usage_error(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    with pytest.raises(BadInput, match="no connection pack"):
        judged(tmp_path, release, rows, framework="nobody")
    with pytest.raises(BadInput, match="is not one"):
        judged(tmp_path, release, rows, date="yesterday")


def test_the_judge_changes_nothing_in_its_case(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows)
    inputs = DataInputs(model=release, workload=write_workload(tmp_path / "w.jsonl"), rows=path)
    case = CHECK.open(inputs, lambda *_: None)
    before = json.dumps([d.sequence.ids.tolist() for d in case.rows.documents])
    first = CHECK.judge(case, lambda *_: None)
    for fault in CHECK.faults[:5]:
        fault.plant(CHECK.smallest(case))
    assert CHECK.judge(case, lambda *_: None) == first
    assert json.dumps([d.sequence.ids.tolist() for d in case.rows.documents]) == before
