"""Labels and stop tokens in the data check."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from checks.verdict import Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, pad, part
from tests.checks.tiny_release import WORKLOAD, write_record, write_release, write_workload


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


def test_without_stop_ids_in_the_release_eos_is_the_stop_token(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release", stops=None)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.PASS
    assert part(verdict, "stop").applicable
    assert "eos" in part(verdict, "stop").notes[0]
    rows[1]["labels"][reply(rows[1])[-1]] = -100
    assert failures(judged(tmp_path, release, rows))["stop"] == {"stop-unlabelled"}


@pytest.mark.parametrize(
    ("eos", "outcome"), [("<|stop|>", Outcome.INCONCLUSIVE), (None, Outcome.NOT_EVALUATED)]
)
def test_a_stop_that_is_not_known_is_never_passed(
    tmp_path: Path, rows: list[Row], eos: str | None, outcome: Outcome
) -> None:
    release = write_release(tmp_path / "release", stops=None)
    path = release / "tokenizer_config.json"
    configuration = json.loads(path.read_text("utf-8")) | {"eos_token": eos}
    path.write_text(json.dumps(configuration), "utf-8")
    for each in rows:  # without a known stop token the turn reaches to the next header
        on = [n for n in range(1, len(each["labels"])) if each["labels"][n - 1] != -100]
        for n in on:
            each["labels"][n] = each["input_ids"][n]
    verdict = judged(tmp_path, release, rows)
    assert part(verdict, "labels").outcome is Outcome.PASS
    assert part(verdict, "stop").outcome is outcome
    assert verdict.outcome is outcome


def test_the_last_reply_alone_is_a_recipe_setting(tmp_path: Path, release: Path) -> None:
    dump = tiny_release.rows("last")
    assert judged(tmp_path, release, dump, supervise="last").outcome is Outcome.PASS
    found = failures(judged(tmp_path, release, dump))
    assert found == {"labels": {"token-not-supervised"}, "stop": {"stop-unlabelled"}}
    verdict = judged(tmp_path, release, tiny_release.rows(), supervise="last")
    assert "of an assistant turn" in only(verdict, "labels", "token-wrongly-supervised").message


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


@pytest.mark.parametrize("value", [-1, -101])
@pytest.mark.parametrize("padding", ["none", "right", "masked", "left"])
def test_labels_that_write_another_number_for_ignored_are_named(
    tmp_path: Path, release: Path, rows: list[Row], value: int, padding: str
) -> None:
    """The one cause is told, not what follows from reading -1 as a label (a wrong token, text, padding)."""
    padded = {
        "none": lambda each: each,
        "right": lambda each: pad(each, 120),
        "masked": lambda each: pad(each, 120, mask=True),
        "left": lambda each: pad(each, 120, left=True, mask=True),
    }
    dump = [padded[padding](each) for each in rows]
    dump = [each | {"labels": [value if n == -100 else n for n in each["labels"]]} for each in dump]
    verdict = judged(tmp_path, release, dump)
    problem = only(verdict, "labels", "label-negative")
    count = dump[0]["labels"].count(value)
    assert f"{count} label(s) below 0 are {value}, where -100 is what the loss leaves out" in problem.message
    assert (problem.place.row, problem.place.token, problem.found) == (None, 0, str(value))
    assert f"are {value}" in verdict.reason


def test_labels_one_ahead_with_another_number_for_ignored_are_named(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [each | {"labels": [-1 if n == -100 else n for n in [*each["labels"][1:], -100]]} for each in rows]
    assert failures(judged(tmp_path, release, dump, labels="shifted")) == {"labels": {"label-negative"}}
