"""What the check says where evidence is missing, unsound, or of a rank that died: never pass."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checks.check import evaluate
from checks.errors import BadInput
from checks.optimization.parts import PARTS
from checks.optimizer_step import CHECK, StepInputs
from checks.verdict import Outcome, Verdict
from tests.checks.test_optimizer_step import MATRICES
from tests.checks.trained_runs import seal, train_all

STEP = "records/rank-00000/step-000001.safetensors"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    scenarios: dict[str, dict[str, Any]] = {
        "plain": {},
        "metrics-only": {"record_steps": []},
        "muon-sampled": {"optimizer": "muon", "frozen": MATRICES, "sample_elements": 50},
        "further-term": {"further_term": 1e-3},
        "detached": {"fault": "detached"},
        "detached-adapters": {"fault": "detached", "lora": {"r": 4, "alpha": 32}},
        "masked-trained": {"fault": "masked_trained"},
        "all-masked": {"fault": "all_masked"},
        "no-rate": {"schedule": "linear", "warmup_steps": 2, "record_steps": [1]},
    }
    return train_all(tmp_path_factory.mktemp("evidence"), scenarios)


@pytest.fixture
def run(trained: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained["plain"], tmp_path / "run"))


def judged(run: Path) -> Verdict:
    return evaluate(CHECK, StepInputs(run=run))


def outcomes(verdict: Verdict) -> dict[str, Outcome]:
    return {part.name: part.outcome for part in verdict.parts if part.applicable}


def rewritten(run: Path, change: Callable[[dict[str, Any], dict[str, str]], None], name: str = STEP) -> Path:
    """The run with one step's tensors changed, and sealed again."""
    path = run / name
    tensors = load_file(path)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    about = json.loads(path.read_bytes()[8 : 8 + length])["__metadata__"]
    change(tensors, about)
    save_file(tensors, path, metadata=about)
    seal(run)
    return run


def lines_changed(run: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None], name: str) -> Path:
    path = run / "records/rank-00000" / name
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))
    seal(run)
    return run


def test_a_rank_that_died_fails_and_nothing_else_is_judged(run: Path) -> None:
    (run / "exit/rank-00000.json").write_text(json.dumps({"rank": 0, "code": None, "signal": 9}))
    seal(run)
    verdict = judged(run)
    assert verdict.outcome is Outcome.FAIL
    assert "rank 0 was ended by signal 9" in verdict.reason
    assert outcomes(verdict) == {
        name: Outcome.FAIL if name == "ranks" else Outcome.NOT_EVALUATED for name in PARTS
    }


def test_the_rank_that_failed_first_is_the_headline(run: Path) -> None:
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(job | {"world_size": 2}))
    stopped = {"rank": 0, "code": None, "signal": 15, "stopped": True}
    (run / "exit/rank-00000.json").write_text(json.dumps(stopped))
    (run / "exit/rank-00001.json").write_text(json.dumps({"rank": 1, "code": 1}))
    seal(run)
    assert "rank 1 ended with code 1" in judged(run).reason


def test_a_rank_without_an_exit_file_failed(run: Path) -> None:
    (run / "exit/rank-00000.json").unlink()
    seal(run)
    assert "left no exit file" in judged(run).reason


def test_a_recorder_that_failed_is_inconclusive(run: Path) -> None:
    (run / "records/rank-00000/recorder-failed.json").write_text("{}")
    seal(run)
    verdict = judged(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "recorder failed" in verdict.reason


def test_a_recorder_that_did_not_finish_is_inconclusive(run: Path) -> None:
    path = run / "records/rank-00000/recorder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": "recording"}))
    seal(run)
    assert judged(run).outcome is Outcome.INCONCLUSIVE


def test_a_fused_head_without_logits_is_judged_by_its_log_probabilities(run: Path) -> None:
    def change(tensors: dict[str, Any], about: dict[str, str]) -> None:
        for name in [
            name for name in tensors if name.endswith(("logsumexp", "logit_mean", "token_residual"))
        ]:
            del tensors[name]

    for number in (1, 2):
        rewritten(run, change, STEP.replace("1.", f"{number}."))
    assert judged(run).outcome is Outcome.PASS


def test_a_rank_that_is_missing_is_no_pass(run: Path) -> None:
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(job | {"world_size": 2}))
    (run / "exit/rank-00001.json").write_text(json.dumps({"rank": 1, "code": 0}))
    seal(run)
    verdict = judged(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "rank 1 ended well and recorded no training step" in verdict.reason


def test_records_that_were_changed_after_sealing_are_never_judged(run: Path) -> None:
    with (run / STEP).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    verdict = judged(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "changed after sealing" in verdict.reason


def test_metrics_alone_leave_the_numbers_not_evaluated(trained: dict[str, Path]) -> None:
    found = outcomes(judged(trained["metrics-only"]))
    assert found["schedule"] is found["groups"] is found["supervision"] is Outcome.PASS
    assert found["update"] is found["loss"] is found["weights"] is Outcome.NOT_EVALUATED
    assert judged(trained["metrics-only"]).outcome is not Outcome.PASS


def test_a_sample_is_not_enough_for_an_update_of_whole_matrices(trained: dict[str, Path]) -> None:
    verdict = judged(trained["muon-sampled"])
    assert outcomes(verdict)["update"] is Outcome.NOT_EVALUATED
    assert any("only a sample" in problem.message for _, problem in verdict.problems())


def test_a_step_without_a_learning_rate_shows_nothing(trained: dict[str, Path]) -> None:
    verdict = judged(trained["no-rate"])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "learning rate and a gradient above 0" in verdict.reason


def test_a_further_loss_term_is_said_and_no_failure(trained: dict[str, Path]) -> None:
    verdict = judged(trained["further-term"])
    assert {problem.code for _, problem in verdict.problems()} == {"further-loss-term"}
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_parameters_that_no_gradient_reaches_are_no_pass(trained: dict[str, Path]) -> None:
    verdict = judged(trained["detached"])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "5 trained parameters got no gradient" in verdict.reason


def test_an_adapter_that_no_gradient_reaches_is_no_pass(trained: dict[str, Path]) -> None:
    verdict = judged(trained["detached-adapters"])
    found = outcomes(verdict)
    assert (found["adapters"], found["update"]) == (Outcome.NOT_EVALUATED, Outcome.INCONCLUSIVE)
    assert any("scaling of 1 of 2 adapted layers" in problem.message for _, problem in verdict.problems())


def test_where_nothing_is_supervised_the_injections_say_that_all_is_zero(trained: dict[str, Path]) -> None:
    reasons = {one.fault: one.detail for one in judged(trained["all-masked"]).injected}
    assert reasons["not clipped"] == "every gradient of step 1 is zero, so there is nothing to clip"
    assert reasons["clipped by the local norm"] == reasons["not clipped"]
    assert reasons["a doubled moment"] == "every moment is zero after step 1"


def test_a_loss_over_masked_tokens_has_no_excuse(trained: dict[str, Path]) -> None:
    found = {(part, problem.code) for part, problem in judged(trained["masked-trained"]).problems()}
    assert {("weights", "unsupervised-token-trained"), ("loss", "loss-differs")} <= found


def test_without_logits_the_weights_are_not_evaluated(run: Path) -> None:
    def change(tensors: dict[str, Any], about: dict[str, str]) -> None:
        for name in [name for name in tensors if ".token_" in name or ".log" in name]:
            del tensors[name]

    for number in (1, 2):
        rewritten(run, change, STEP.replace("1.", f"{number}."))
    found = outcomes(judged(run))
    assert found["weights"] is found["loss"] is Outcome.NOT_EVALUATED
    assert found["update"] is Outcome.PASS


def test_without_a_value_after_the_step_an_update_is_not_evaluated(run: Path) -> None:
    rewritten(run, lambda tensors, about: tensors.pop("after.lm_head.weight"))
    found = outcomes(judged(run))
    assert found["update"] is Outcome.NOT_EVALUATED
    assert found["clip"] is Outcome.PASS


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format", "x", "is no step record"),
        ("version", "9", "is no step record"),
        ("rank", "1", "says it is of rank '1'"),
        ("samples", "[", "its metadata does not fit"),
        ("samples", '{"before.x": {"stride": 0}}', "its metadata does not fit"),
        ("placements", '{"x": {"offset": "y"}}', "its metadata does not fit"),
    ],
)
def test_a_step_record_that_does_not_fit_is_inconclusive(run: Path, key: str, value: str, said: str) -> None:
    rewritten(run, lambda tensors, about: about.update({key: value}))
    verdict = judged(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert said in verdict.reason


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"step": -1}', '{"step": 1, "groups": [{"lr": 1}]}', "[" * 100_000]
)
def test_a_line_that_does_not_fit_is_inconclusive(run: Path, text: str) -> None:
    with (run / "records/rank-00000/steps.jsonl").open("a") as file:
        file.write(text + "\n")
    seal(run)
    verdict = judged(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "steps.jsonl, line 4" in verdict.reason


def test_without_the_modes_of_a_step_its_dropout_is_not_judged(run: Path) -> None:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        for batch in line["micro_batches"] if line["step"] == 2 else ():
            batch["modes"] = None
        return line

    verdict = judged(lines_changed(run, change, "steps.jsonl"))
    assert outcomes(verdict)["modes"] is Outcome.NOT_EVALUATED
    found = [problem for _, problem in verdict.problems()]
    assert [(problem.code, problem.place.step) for problem in found] == [("modes-unknown", 2)]


def test_a_step_count_that_is_no_number_is_not_evaluated(run: Path) -> None:
    def change(tensors: dict[str, Any], about: dict[str, str]) -> None:
        tensors["state.before.norm.weight.step"] = np.array(np.nan, np.float32)

    rewritten(run, change, STEP.replace("1.", "2."))
    assert outcomes(judged(run))["update"] is Outcome.NOT_EVALUATED


def test_gradients_that_are_not_finite_are_no_pass(run: Path) -> None:
    def change(tensors: dict[str, Any], about: dict[str, str]) -> None:
        tensors["grad.used.norm.weight"] = tensors["grad.used.norm.weight"] * float("nan")

    rewritten(run, change)
    assert judged(run).outcome is not Outcome.PASS


def test_uneven_rows_are_found(run: Path) -> None:
    other = run / "records/rank-00001"
    shutil.copytree(run / "records/rank-00000", other)
    path = other / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["micro_batches"][0]["rows"] -= 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    for step in (1, 2):
        name = f"records/rank-00001/step-{step:06d}.safetensors"
        rewritten(run, lambda tensors, about: about.update({"rank": "1"}), name)
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(job | {"world_size": 2}))
    (run / "exit/rank-00001.json").write_text(json.dumps({"rank": 1, "code": 0}))
    seal(run)
    found = {(part, problem.code) for part, problem in judged(run).problems()}
    assert {("ranks", "rows-differ"), ("ranks", "step-missing")} <= found


def test_a_frozen_parameter_that_moved_is_found(run: Path) -> None:
    job = json.loads((run / "job.json").read_text())
    job["settings"]["frozen"] = ["lm_head.*"]
    (run / "job.json").write_text(json.dumps(job))
    seal(run)
    found = {(part, problem.code) for part, problem in judged(run).problems()}
    assert {("groups", "frozen-moved"), ("groups", "trained-though-frozen")} <= found


def test_another_epsilon_is_a_hyperparameter_that_differs(run: Path) -> None:
    job = json.loads((run / "job.json").read_text())
    job["settings"]["epsilon"] = 1e-6
    (run / "job.json").write_text(json.dumps(job))
    seal(run)
    found = {(part, problem.code) for part, problem in judged(run).problems()}
    assert ("groups", "hyperparameter-differs") in found


def test_what_is_no_run_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        judged(tmp_path)
    with pytest.raises(BadInput):
        judged(tmp_path / "nowhere")


def test_a_run_of_another_procedure_is_not_evaluated(run: Path) -> None:
    shutil.rmtree(run / "records")
    (run / "exit/rank-00000.json").write_text(json.dumps({"rank": 0, "code": 0}))
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(job | {"settings": {"epochs": 2}, "procedure": "rows"}))
    seal(run)
    verdict = judged(run)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "train_step" in verdict.next_step
