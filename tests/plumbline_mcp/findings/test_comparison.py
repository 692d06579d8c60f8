"""What is near the truth and not it is disputed; what was not said is never agreement."""

import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plumbline_mcp.findings.comparison import ABSOLUTE, RELATIVE, Result, close, compare
from plumbline_mcp.findings.finding import Claim
from plumbline_mcp.findings.questions import RebuiltProblem, Submission
from tests.plumbline_mcp.findings.made import CLAIM, RIGHT


def answered(**changed: Any) -> Result:
    return compare(CLAIM, RIGHT.model_copy(update=changed)).result


def moved(**changed: Any) -> Result:
    return answered(place={**RIGHT.place, **changed})


def test_the_right_answer_agrees_in_every_field() -> None:
    comparison = compare(CLAIM, RIGHT)
    assert comparison.result is Result.AGREE
    assert [field.name for field in comparison.fields] == [
        "outcome",
        "place",
        "clip: gradient norm, step 3",
        "clip: clipped share",
    ]
    assert comparison.why() == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 0},
        {"rank": 2},
        {"step": 2},
        {"tensor": "model.layers.3.mlp.up_proj.weight"},
        {"tensor": "model.layers.5.mlp.up_proj.weight"},
        {"tensor": "model.layers.4.mlp.down_proj.weight"},
    ],
)
def test_one_rank_step_layer_or_tensor_off_is_disputed(wrong: dict[str, Any]) -> None:
    assert moved(**wrong) is Result.DISPUTE


def test_another_outcome_is_disputed_and_inconclusive_decides_nothing() -> None:
    assert answered(outcome="pass") is Result.DISPUTE
    assert answered(outcome="inconclusive", reason="a record is missing") is Result.UNDECIDED


@pytest.mark.parametrize("factor", [1.01, 0.99, 1.001, 1 + 1e-5, -1.0])
@pytest.mark.parametrize("name", ["clip: gradient norm, step 3", "clip: clipped share"])
def test_a_value_a_little_off_is_disputed(name: str, factor: float) -> None:
    assert answered(values={**RIGHT.values, name: RIGHT.values[name] * factor}) is Result.DISPUTE


def test_a_stated_value_that_was_not_rebuilt_leaves_it_undecided() -> None:
    assert answered(values={"clip: clipped share": 0.5}) is Result.UNDECIDED


def test_a_value_that_the_verdict_measured_is_compared_only_where_it_was_rebuilt() -> None:
    assert answered(values={"clip: gradient norm, step 3": 0.25}) is Result.AGREE


def test_a_place_that_was_not_said_is_no_agreement() -> None:
    assert answered(place={}) is Result.UNDECIDED
    tensor = {"tensor": RIGHT.place["tensor"]}
    assert answered(place=tensor) is Result.UNDECIDED


def test_the_place_may_be_that_of_any_problem_that_was_found() -> None:
    elsewhere = RIGHT.model_copy(
        update={
            "place": {"rank": 0, "step": 1, "tensor": "lm_head.weight"},
            "problems": (RebuiltProblem(code="norm-differs", where=RIGHT.place),),
        }
    )
    assert compare(CLAIM, elsewhere).result is Result.AGREE
    assert compare(CLAIM, elsewhere.model_copy(update={"problems": ()})).result is Result.DISPUTE


def test_a_file_that_holds_the_tensor_need_not_be_named_but_may_not_be_another() -> None:
    claim = Claim(check="export", place={"file": "model-2.safetensors", "tensor": "w"})
    assert compare(claim, Submission(outcome="fail", place={"tensor": "w"})).result is Result.AGREE
    other = Submission(outcome="fail", place={"tensor": "w", "file": "model-1.safetensors"})
    assert compare(claim, other).result is Result.DISPUTE
    alone = Claim(check="export", place={"file": "config.json"})
    assert compare(alone, Submission(outcome="fail", place={"tensor": "w"})).result is Result.DISPUTE


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1, 1))
def test_values_are_close_exactly_within_the_stated_tolerance(claimed: float, share: float) -> None:
    assume(abs(claimed) < 1e300 and (claimed == 0 or abs(claimed) > 1e-300))
    scale = abs(claimed) if claimed else 1.0
    limit = RELATIVE * scale if claimed else ABSOLUTE
    found = claimed + share * 2 * limit
    assume(abs(abs(found - claimed) - limit) > 1e-9 * limit + 1e-15 * scale * (claimed != 0))
    assert close(claimed, found) == (abs(found - claimed) < limit)


def test_of_forty_claims_near_the_truth_all_are_disputed_and_of_forty_true_ones_none() -> None:
    """Half within 1%, a quarter one rank off, a quarter one layer off; drawn with a fixed seed."""
    draw = random.Random(4)
    wrong = agreed = 0
    for number in range(40):
        layer, rank, value = draw.randrange(1, 60), draw.randrange(1, 8), draw.uniform(1e-6, 1e6)
        truth = Submission(
            outcome="fail",
            place={"rank": rank, "tensor": f"model.layers.{layer}.mlp.up_proj.weight"},
            values={"loss: mean loss": value},
        )
        claim = Claim(check="optimizer_step", place=truth.place, values=truth.values)
        agreed += compare(claim, truth).result is Result.AGREE
        off = draw.choice((-1, 1))
        if number % 2:
            claim = claim.model_copy(
                update={"values": {"loss: mean loss": value * (1 + off * draw.uniform(1e-5, 0.01))}}
            )
        elif number % 4:
            claim = claim.model_copy(update={"place": {**claim.place, "rank": rank + off}})
        else:
            tensor = f"model.layers.{layer + off}.mlp.up_proj.weight"
            claim = claim.model_copy(update={"place": {**claim.place, "tensor": tensor}})
        wrong += compare(claim, truth).result is Result.DISPUTE
    assert (wrong, agreed) == (40, 40)
