"""Step records that were cut short, changed or made up: never a crash, never a pass."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.check import silent
from checks.errors import CannotJudge, NotEvaluated
from checks.optimizer_step import CHECK, StepInputs
from checks.records.steps import RankSteps, StepLine
from checks.verdict import Outcome, combine
from tests.checks.test_optimizer_step_evidence import STEP, judged, lines_changed, rewritten
from tests.checks.trained_runs import seal, train_all

Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sgd = {"optimizer": "sgd", "momentum": 0.9}
    return train_all(tmp_path_factory.mktemp("hostile"), {"plain": {}, "sgd": sgd})


@pytest.fixture
def run(trained: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained["plain"], tmp_path / "run"))


def outcome(run: Path) -> Outcome:
    """The outcome without the injected faults, which are another test's."""
    try:
        parts = CHECK.judge(CHECK.open(StepInputs(run=run), silent), silent)
    except CannotJudge as error:
        return Outcome.NOT_EVALUATED if isinstance(error, NotEvaluated) else Outcome.INCONCLUSIVE
    return combine(part.outcome for part in parts)


def test_the_run_that_is_changed_passes(run: Path) -> None:
    assert outcome(run) is Outcome.PASS


def set_to(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = np.ascontiguousarray(make(tensors[name]))

    return change


def without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.pop(name)


def renamed(name: str, other: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[other] = tensors.pop(name)

    return change


def filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: np.full_like(values, value)


def flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1)


def cut(values: np.ndarray) -> np.ndarray:
    return values[:-1]


def empty(values: np.ndarray) -> np.ndarray:
    return values[:0]


def whole_numbers(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64)


SHAPES = (
    "micro.0.labels", "micro.0.logprob", "micro.0.token_weight", "micro.0.logsumexp",
    "micro.1.token_residual",
    "micro.0.witness.lm_head.input", "micro.0.witness.lm_head.grad_output",
    "before.lm_head.weight", "after.lm_head.weight", "grad.raw.lm_head.weight", "grad.used.lm_head.weight",
    "state.after.lm_head.weight.exp_avg",
)  # fmt: skip
VALUES = (
    "micro.0.logprob", "micro.0.token_weight", "micro.1.token_residual",
    "micro.0.witness.lm_head.input", "micro.0.witness.lm_head.grad_output",
    "before.lm_head.weight", "after.lm_head.weight", "grad.raw.lm_head.weight", "grad.used.lm_head.weight",
    "state.after.lm_head.weight.exp_avg", "state.after.lm_head.weight.step",
)  # fmt: skip
CHANGES: dict[str, Callable[[Tensors], Any]] = {
    **{f"{made.__name__}-{name}": set_to(name, made) for name in SHAPES for made in (flat, cut, empty)},
    **{f"{value}-{name}": set_to(name, filled(value)) for name in VALUES for value in (np.nan, np.inf, -1e9)},
    "integers": set_to("grad.used.norm.weight", whole_numbers),
    "no-width": set_to("micro.0.witness.lm_head.input", lambda values: values[..., :0]),
    "no-count": set_to("state.after.norm.weight.step", lambda values: np.zeros(0, np.float32)),
    "a-micro-batch-left-out": lambda tensors: [tensors.pop(n) for n in [*tensors] if "micro.1." in n],
    "micro-batch-a-billion": renamed("micro.1.labels", "micro.999999999.labels"),
    "witness-without-input": without("micro.0.witness.lm_head.input"),
    "value-left-out": without("before.norm.weight"),
    "used-gradient-left-out": without("grad.used.norm.weight"),
    "value-renamed": renamed("before.norm.weight", "before.norm.other"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_tensors_that_do_not_hold_are_never_a_pass(run: Path, name: str) -> None:
    def change(tensors: Tensors, about: dict[str, str]) -> None:
        CHANGES[name](tensors)

    for step in (1, 2):
        rewritten(run, change, STEP.replace("1.", f"{step}."))
    assert outcome(run) is not Outcome.PASS


@pytest.mark.parametrize(
    "placement",
    [
        {"kinds": ["shard(0)"], "local_shape": [3], "offset": [0]},
        {"kinds": ["shard(0)"], "local_shape": [16], "offset": [-4]},
        {"kinds": ["shard(0)"], "local_shape": [16], "offset": [0, 0]},
        {"kinds": ["shard(0)"], "local_shape": [16], "offset": [2**60]},
    ],
)
def test_a_placement_that_cannot_be_is_inconclusive(run: Path, placement: dict[str, Any]) -> None:
    text = json.dumps({"norm.weight": placement})
    rewritten(run, lambda tensors, about: about.update({"placements": text}))
    assert outcome(run) is Outcome.INCONCLUSIVE


def test_state_of_another_shape_is_not_taken_for_the_recipes(
    trained: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained["sgd"], tmp_path / "run"))

    def change(tensors: Tensors, about: dict[str, str]) -> None:
        for when in ("before", "after"):
            tensors[f"state.{when}.lm_head.weight.momentum_buffer"] = np.zeros((1, 16), np.float32)

    verdict = judged(rewritten(run, change, STEP.replace("1.", "2.")))
    assert verdict.outcome is not Outcome.PASS
    assert any("its optimizer state" in problem.message for _, problem in verdict.problems())


LINES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "negative-squares": lambda line: line["gradient_squares_raw"].update({"lm_head.weight": -1.0}),
    "endless-squares": lambda line: line["gradient_squares_raw"].update({"lm_head.weight": "inf"}),
    "huge-rate": lambda line: line["groups"][0].update({"lr": 10**400}),
    "rate-is-nan": lambda line: line["groups"][0].update({"lr": "nan"}),
    "rate-is-a-list": lambda line: line["groups"][0].update({"lr": [1]}),
    "opposed-losses": lambda line: [
        batch.update({"differentiated": sign + "inf"})
        for batch, sign in zip(line["micro_batches"], ("", "-"), strict=True)
    ],
    "loss-is-nan": lambda line: line["micro_batches"][0].update({"differentiated": "nan"}),
    "count-is-nan": lambda line: line["micro_batches"][0].update({"supervised": "nan"}),
    "rows-are-huge": lambda line: line["micro_batches"][0].update({"rows": 1e300}),
    "norm-is-nan": lambda line: line["clip"].update({"returned": "nan"}),
    "no-groups": lambda line: line.update({"groups": []}),
    "no-micro-batches": lambda line: line.update({"micro_batches": []}),
    "groups-that-hold-nothing": lambda line: [group.update({"params": []}) for group in line["groups"]],
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_do_not_hold_are_never_a_pass(run: Path, name: str) -> None:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        LINES[name](line)
        return line

    assert outcome(lines_changed(run, change, "steps.jsonl")) is not Outcome.PASS


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", ["inf", "nan", "-inf", 1e300])
def test_what_was_logged_without_an_end_is_no_pass(run: Path, name: str, value: object) -> None:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] == "logged":
            line["values"][name] = value
        return line

    assert outcome(lines_changed(run, change, "events.jsonl")) is Outcome.FAIL


def test_a_run_that_logged_no_loss_says_so(run: Path) -> None:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] == "logged":
            line["values"].pop("loss")
        return line

    told = "the logged loss was judged in 0 of"
    before = {part.name: part.notes for part in judged(run).parts}
    assert not any(told in note for note in before["loss"])
    (loss,) = (
        part for part in judged(lines_changed(run, change, "events.jsonl")).parts if part.name == "loss"
    )
    assert loss.outcome is Outcome.PASS
    assert any(told in note for note in loss.notes)


@pytest.mark.parametrize("step", [[1], {"a": 1}, None, True, "1", 1.5, -(2**70)])
def test_an_event_that_names_no_step_leaves_nothing_out(run: Path, step: object) -> None:
    path = next(run.glob("records/*/events.jsonl"))
    path.write_text(path.read_text() + json.dumps({"event": "skipped", "step": step}) + "\n")
    seal(run)
    assert outcome(run) is Outcome.PASS


def test_a_step_whose_optimizers_are_all_said_to_be_left_out_is_not_judged(run: Path) -> None:
    path = next(run.glob("records/*/events.jsonl"))
    said = [json.dumps({"event": "skipped", "step": step}) + "\n" for step in (1, 2, 3)]
    path.write_text(path.read_text() + "".join(said))
    seal(run)
    assert outcome(run) in (Outcome.NOT_EVALUATED, Outcome.INCONCLUSIVE)


def broken_bytes(run: Path, change: Callable[[bytes], bytes]) -> Outcome:
    path = run / STEP
    path.write_bytes(change(path.read_bytes()))
    seal(run)
    return outcome(run)


def with_header(raw: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + raw[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: b"",
        lambda raw: raw[:100],
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: struct.pack("<Q", 2**63) + raw[8:],
        lambda raw: with_header(raw, lambda h: h["after.lm_head.weight"].update({"data_offsets": [-8, 0]})),
        lambda raw: with_header(raw, lambda h: h["after.lm_head.weight"].update({"shape": [2**40, 2**40]})),
        lambda raw: with_header(raw, lambda h: h["after.lm_head.weight"].update({"shape": [-61, -16]})),
        lambda raw: with_header(raw, lambda h: h["after.lm_head.weight"].update({"dtype": "F99"})),
        lambda raw: with_header(raw, lambda h: h["__metadata__"].update({"transposed": "{}"})),
        lambda raw: with_header(raw, lambda h: h["__metadata__"].update({"samples": "[" * 10_000})),
    ],
)  # fmt: skip
def test_a_file_that_is_no_step_record_is_inconclusive(run: Path, change: Callable[[bytes], bytes]) -> None:
    assert broken_bytes(run, change) is Outcome.INCONCLUSIVE


def test_a_step_of_a_long_run_is_found_at_once() -> None:
    lines = tuple(StepLine(step=step) for step in range(1, 20_001))
    rank = RankSteps(0, lines, {}, {})
    assert [rank.line(step) for step in range(1, 20_001)] == list(lines)
