"""Real trainings of one and two ranks under the real recorder: clean ones pass, broken ones fail in place."""

from pathlib import Path
from typing import Any

import pytest

from checks.check import evaluate
from checks.optimization.parts import PARTS
from checks.optimizer_step import CHECK, StepInputs
from checks.verdict import Caught, Outcome, Verdict
from tests.checks.trained_runs import train_all

BF16: dict[str, Any] = {"dtype": "bfloat16", "bf16_in_place": True}
LORA: dict[str, Any] = {"lora": {"r": 4, "alpha": 32}}
MATRICES = ["embed_tokens*", "layers.0*", "layers.1.input*", "layers.1.up_proj.bias", "norm*"]
STOCHASTIC = {"optimizer": "sgd", "dtype": "bfloat16", "learning_rate": 0.03, "stochastic_rounding": True}
KAHAN = {**STOCHASTIC, "learning_rate": 1e-3, "stochastic_rounding": False, "kahan": True}
SCALED: dict[str, Any] = {"autocast": "float16", "scaler": {"init_scale": 2.0**14}}
SKIPS: dict[str, Any] = {  # the first step overflows float16
    "autocast": "float16", "scaler": {"init_scale": 2.0**24, "backoff_factor": 2.0**-10},
    "steps": 4, "record_steps": [1, 2, 3],
}  # fmt: skip
SPLIT: dict[str, Any] = {  # two optimizers; a step of both, of the first and of the second is left out
    "split": True, "max_grad_norm": 0.0, "scaler": {"init_scale": 2.0**10},
    "overflows": [[1, 0], [2, 0], [2, 1], [4, 1]], "steps": 6, "record_steps": [1, 2, 3, 4, 5],
}  # fmt: skip
LATER: dict[str, Any] = {  # late enough that what is never added is more than rounding takes
    **KAHAN, "learning_rate": 3e-2, "schedule": "constant", "steps": 40, "record_steps": [38, 39],
}  # fmt: skip
AVERAGED: dict[str, Any] = {"steps": 4, "record_steps": [2, 3]}  # steps that begin with the average
CLEAN: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw-fused": {"implementation": {"fused": True}},
    "adamw-foreach": {"implementation": {"foreach": True}},
    "adam": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd", "weight_decay": 0.0, "learning_rate": 0.1},
    "sgd-nesterov": {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    "adafactor": {"optimizer": "adafactor"},
    "torch-adafactor": {"optimizer": "torch-adafactor"},
    "muon": {"optimizer": "muon", "frozen": MATRICES},
    "autocast": {"autocast": "bfloat16"},
    "float64": {"dtype": "float64"},
    "bf16": {**BF16, "learning_rate": 1e-5},
    "bf16-fused": {**BF16, "implementation": {"fused": True}},
    "bf16-sgd": {**BF16, "optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1},
    "bf16-adafactor": {**BF16, "optimizer": "adafactor"},
    "bf16-torch-adafactor": {**BF16, "optimizer": "torch-adafactor"},
    "smoothed": {"label_smoothing": 0.1},
    "cosine": {"schedule": "cosine", "warmup_steps": 1, "steps": 5, "record_steps": [2, 4]},
    "lora": LORA,
    "frozen": {"frozen": ["layers.0*", "embed_tokens*"]},
    "unclipped": {"max_grad_norm": 0.0},
    "sampled": {"sample_elements": 100},
    "one-micro-batch": {"accumulation": 1},
    "transposed": {"transposed": True, "frozen": ["lm_head*"]},
    "masters": {"dtype": "bfloat16", "masters": True},
    "own-sgd": {"optimizer": "sgd", "own": "plain"},
    "stochastic-rounding": {**STOCHASTIC, "own": "stochastic"},
    "kahan": {**KAHAN, "own": "kahan"},
    "kahan-later": {**LATER, "own": "kahan"},
    "scaled": SCALED,
    "scaled-fused": {**SCALED, "implementation": {"fused": True}, "max_grad_norm": 0.0},
    "skips": SKIPS,
    "skips-and-schedule-waits": {**SKIPS, "schedule_waits": True},
    "skips-fused": {**SKIPS, "implementation": {"fused": True}, "max_grad_norm": 0.0},
    "skips-of-two": SPLIT,
    "skips-of-two-fused": {**SPLIT, "implementation": {"fused": True}},
    "dropout": {"dropout": 0.2},
    "eval-without-dropout": {"fault": "eval_mode"},
    "frozen-in-eval": {"dropout": 0.2, "frozen": ["layers.0*", "embed_tokens*"], "eval": ["layers.0"]},
}
CLEAN_PAIRS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp-bf16": BF16,
    "ddp-autocast": {"autocast": "bfloat16", "accumulation": 4},
    "ddp-lora": LORA,
    "fsdp2": {"layout": "fsdp2", "max_grad_norm": 0.5},
    "fsdp2-bf16-sampled": {"layout": "fsdp2", "sample_elements": 64, **BF16},
}
BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "mean-of-means": ({"fault": "mean_of_means"}, "weights", "token-weights-differ"),
    "not-a-number": ({"fault": "not_a_number"}, "gradient", "gradient-not-finite"),
    "uneven-tokens": ({"fault": "uneven_tokens"}, "weights", "token-weights-differ"),
    "times-accumulation": ({"fault": "times_accumulation"}, "weights", "loss-scale-differs"),
    "micro-batch-lost": ({"fault": "last_micro_batch_lost"}, "weights", "loss-scale-differs"),
    "no-zero-grad": ({"fault": "no_zero_grad"}, "gradient", "contribution-lost"),
    "decay-on-norms": ({"fault": "decay_on_norms"}, "groups", "decay-differs"),
    "skipped-group": ({"fault": "skipped_group"}, "groups", "not-held"),
    "coupled-decay": ({"fault": "coupled_decay"}, "update", "update-differs"),
    "stale-optimizer": ({"fault": "stale"}, "groups", "stale-parameter"),
    "frozen-trained": (
        {"fault": "frozen_trained", "frozen": ["layers.0*"]}, "groups", "trained-though-frozen",
    ),
    "not-clipped": ({"fault": "not_clipped"}, "clip", "not-clipped"),
    "clipped-to-another": (
        {"fault": "clipped_to_another", "max_grad_norm": 100.0}, "clip", "max-norm-differs",
    ),
    "clipped-once": ({"fault": "clipped_once", "max_grad_norm": 100.0}, "clip", "not-clipped"),
    "weights-rounded": ({"fault": "weights_rounded"}, "update", "moved-between-steps"),
    "state-cleared": ({"fault": "state_cleared"}, "state", "state-lost"),
    "smoothing-left-out": (
        {"fault": "smoothing_left_out", "label_smoothing": 0.1}, "weights", "not-cross-entropy",
    ),
    "all-masked": ({"fault": "all_masked"}, "supervision", "nothing-supervised"),
    "logged-doubled": ({"fault": "logged_doubled"}, "loss", "logged-loss-differs"),
    "adapter-scaling": ({"fault": "adapter_scaling", **LORA}, "adapters", "scaling-differs"),
    "eval-mode": ({"fault": "eval_mode", "dropout": 0.2}, "modes", "left-in-eval-mode"),
    "layer-in-eval": ({"dropout": 0.2, "eval": ["layers.1"]}, "modes", "left-in-eval-mode"),
    "kahan-without-compensation": ({**KAHAN, "own": "plain"}, "lost_updates", "updates-lost"),
    "kahan-never-added": ({**LATER, "own": "never_added"}, "lost_updates", "updates-lost"),
    "kahan-weights-averaged": ({**KAHAN, **AVERAGED, "own": "averaged"}, "lost_updates", "updates-lost"),
    "not-unscaled": ({**SCALED, "fault": "not_unscaled"}, "weights", "loss-scale-differs"),
    "half-update": ({"optimizer": "sgd", "own": "half"}, "update", "update-differs"),
    "update-lost": ({"optimizer": "sgd", "own": "first_lost"}, "update", "not-updated"),
    "rounding-biased": ({**STOCHASTIC, "own": "truncated"}, "update", "rounding-biased"),
    "bf16-undeclared": ({"dtype": "bfloat16", "learning_rate": 1e-5}, "lost_updates", "updates-lost"),
}  # fmt: skip
BROKEN_PAIRS: dict[str, tuple[dict[str, Any], str, str]] = {
    "mean-per-rank": ({"fault": "mean_per_rank"}, "weights", "token-weights-differ"),
    "pair-mean-of-means": ({"fault": "mean_of_means"}, "weights", "token-weights-differ"),
    "pair-times-accumulation": ({"fault": "times_accumulation"}, "weights", "loss-scale-differs"),
    "unsynchronised": ({"fault": "unsynchronised"}, "gradient", "contribution-lost"),
    "same-rows-alone": ({"fault": "same_rows_alone"}, "ranks", "rows-repeated"),
    "no-sync-off-by-one": ({"fault": "no_sync_off_by_one"}, "gradient", "contribution-lost"),
    "schedule-per-rank": (
        {"fault": "schedule_per_rank", "steps": 4, "record_steps": [2, 3]},
        "schedule",
        "learning-rate-differs",
    ),
    "local-norm": (
        {"fault": "local_norm", "layout": "fsdp2", "max_grad_norm": 0.5}, "clip", "norm-differs",
    ),
}  # fmt: skip
INJECTED_IN_A_PAIR = {"mean per rank", "a rank not synchronised", "mean of micro-batch means"}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    broken = {name: changes for name, (changes, _, _) in BROKEN.items()}
    return train_all(tmp_path_factory.mktemp("single"), CLEAN | broken)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    broken = {name: changes for name, (changes, _, _) in BROKEN_PAIRS.items()}
    return train_all(tmp_path_factory.mktemp("pairs"), CLEAN_PAIRS | broken, 2)


def judged(run: Path) -> Verdict:
    return evaluate(CHECK, StepInputs(run=run))


def codes(verdict: Verdict) -> set[tuple[str, str]]:
    return {(part, problem.code) for part, problem in verdict.problems() if problem.outcome is Outcome.FAIL}


def described(verdict: Verdict) -> str:
    problems = "\n".join(f"{part} {problem}" for part, problem in verdict.problems()[:6])
    return f"{verdict.reason}\n{problems}\n{verdict.injected}"


def assert_clean(verdict: Verdict) -> None:
    assert verdict.outcome is Outcome.PASS, described(verdict)
    assert Caught.MISSED not in {each.result for each in verdict.injected}, described(verdict)
    assert [part.name for part in verdict.parts] == list(PARTS)
    assert sum(each.result is Caught.CAUGHT for each in verdict.injected) >= 6


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_training_passes(single: dict[str, Path], name: str) -> None:
    assert_clean(judged(single[name]))


@pytest.mark.parametrize("name", CLEAN_PAIRS)
def test_a_clean_training_of_two_ranks_passes(pairs: dict[str, Path], name: str) -> None:
    verdict = judged(pairs[name])
    assert_clean(verdict)
    caught = {each.fault for each in verdict.injected if each.result is Caught.CAUGHT}
    wanted = INJECTED_IN_A_PAIR - ({"a rank not synchronised"} if "fsdp2" in name else set())
    assert wanted <= caught


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_training_fails_where_it_is_broken(single: dict[str, Path], name: str) -> None:
    _, part, code = BROKEN[name]
    verdict = judged(single[name])
    assert verdict.outcome is Outcome.FAIL, described(verdict)
    assert (part, code) in codes(verdict), described(verdict)
    assert verdict.reason.startswith(f"{part}: "), described(verdict)


@pytest.mark.parametrize("name", BROKEN_PAIRS)
def test_a_broken_training_of_two_ranks_fails_where_it_is_broken(pairs: dict[str, Path], name: str) -> None:
    _, part, code = BROKEN_PAIRS[name]
    verdict = judged(pairs[name])
    assert verdict.outcome is Outcome.FAIL, described(verdict)
    assert (part, code) in codes(verdict), described(verdict)
    assert verdict.reason.startswith(f"{part}: "), described(verdict)


def test_two_ranks_that_train_alone_are_told_apart_tensor_by_tensor(pairs: dict[str, Path]) -> None:
    found = codes(judged(pairs["unsynchronised"]))
    assert {("gradient", "replicas-differ"), ("update", "replicas-differ")} <= found


def test_a_layer_in_eval_mode_is_named_with_what_it_leaves_out(single: dict[str, Path]) -> None:
    problems = [found for part, found in judged(single["layer-in-eval"]).problems() if part == "modes"]
    assert [str(found.place) for found in problems] == ["tensor layers.1, rank 0, step 1"]
    assert problems[0].expected == "training mode (dropout 0.2 acts)"
    assert problems[0].found == "eval mode in 3 of 3 steps; modes turn at layers.1"
    whole = [found for part, found in judged(single["eval-mode"]).problems() if part == "modes"]
    assert [found.place.tensor for found in whole] == ["layers.0", "layers.1"]
    assert "the whole model is in eval mode" in str(whole[0].found)


def test_steps_that_a_scaler_left_out_are_said(single: dict[str, Path]) -> None:
    for name in ("skips", "skips-fused"):
        ranks, update = (p for p in judged(single[name]).parts if p.name in ("ranks", "update"))
        assert ranks.notes[0].startswith("1 steps, first step 1, were left out by the gradient scaler")
        assert str(update.coverage) == "22 of 22 parameters in recorded steps"  # 11 in steps 2 and 3


def test_a_step_left_out_for_one_of_two_optimizers_is_said_and_not_judged(single: dict[str, Path]) -> None:
    for name in ("skips-of-two", "skips-of-two-fused"):
        ranks, update = (p for p in judged(single[name]).parts if p.name in ("ranks", "update"))
        assert [note.partition(" for some")[0] for note in ranks.notes] == [
            "1 steps, first step 2, were left out by the gradient scaler: a gradient was not finite",
            "2 steps, first step 1, were left out by the gradient scaler",
        ]
        assert str(update.coverage) == "22 of 22 parameters in recorded steps"  # 11 in steps 3 and 5


def test_declared_bf16_in_place_is_reported_as_a_departure(single: dict[str, Path]) -> None:
    part = next(part for part in judged(single["bf16"]).parts if part.name == "lost_updates")
    assert part.outcome is Outcome.PASS
    assert "updates were lost to rounding" in part.notes[0]
    assert isinstance(part.measurements[0].value, float)
    assert part.measurements[0].value > 0.5


def test_clean_trainings_use_little_of_the_bound_and_faults_are_far_outside(single: dict[str, Path]) -> None:
    def gradient(name: str) -> float:
        part = next(part for part in judged(single[name]).parts if part.name == "gradient")
        return max(float(m.value or 0) / float(m.bound or 1) for m in part.measurements)

    assert gradient("adamw") < 0.25
    assert gradient("bf16") < 0.5
    assert gradient("no-zero-grad") > 1000
