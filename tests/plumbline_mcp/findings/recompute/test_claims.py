"""Forty right claims agree; forty wrong ones, half of them within 1%, are told apart."""

from collections.abc import Iterator
from typing import Any

import pytest

from checks.verdict import Outcome
from plumbline_mcp.findings.comparison import Result
from plumbline_mcp.findings.finding import Claim
from tests.plumbline_mcp.findings.recompute.judged import Judged

MANY = 40


@pytest.fixture(scope="session")
def everything(
    trained: dict[str, Judged],
    builds: dict[str, Judged],
    loads: dict[str, Judged],
    exports: dict[str, Judged],
    dumps: dict[str, Judged],
) -> list[Judged]:
    """Every record whose verdict decides, failures first."""
    found = [*trained.values(), *builds.values(), *loads.values(), *exports.values(), *dumps.values()]
    decided = [one for one in found if one.verdict.outcome in (Outcome.PASS, Outcome.FAIL)]
    return sorted(decided, key=lambda one: one.verdict.outcome is Outcome.PASS)


def test_forty_right_claims_agree(everything: list[Judged]) -> None:
    results = [one.compared().result for one in everything]
    assert len(results) >= MANY
    assert set(results) == {Result.AGREE}


def _off_by_less_than_one_percent(one: Judged) -> Iterator[Claim]:
    """One value of the claim 0.9%, then 0.01% away from what was measured."""
    given = one.answer().values
    for name, value in one.measured().items():
        if value and name in given:
            yield one.claim(values={name: value * 1.009})
            yield one.claim(values={name: value * 0.9999})


def test_twenty_claims_with_a_value_within_one_percent_are_disputed(everything: list[Judged]) -> None:
    claims = [(one, claim) for one in everything for claim in _off_by_less_than_one_percent(one)]
    assert len({one.name for one, _ in claims}) >= MANY // 2
    assert len(claims) >= MANY
    assert {one.compared(claim).result for one, claim in claims[:: len(claims) // MANY]} == {Result.DISPUTE}


def _one_further(place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The place with one rank, step, row, token or layer counted one further."""
    for name in ("rank", "step", "row", "token"):
        if isinstance(place.get(name), int):
            yield {**place, name: place[name] + 1}
    tensor = str(place.get("tensor", ""))
    for layer in (0, 1):
        if f"layers.{layer}." in tensor:
            yield {**place, "tensor": tensor.replace(f"layers.{layer}.", f"layers.{1 - layer}.")}


def test_twenty_claims_one_rank_step_row_token_or_layer_off_are_disputed(everything: list[Judged]) -> None:
    claims = []
    for one in everything:
        met = [problem.place.model_dump(exclude_none=True) for _, problem in one.verdict.problems()]
        for place in _one_further(one.place()):
            if not any(place.items() <= other.items() for other in met):  # a fault may show at several places
                claims.append((one, one.claim(place=place, values={})))
    assert len(claims) >= MANY // 2
    wrong = [
        (one.name, claim.place) for one, claim in claims if one.compared(claim).result is not Result.DISPUTE
    ]
    assert wrong == []


def test_the_other_outcome_is_never_agreed_to(everything: list[Judged]) -> None:
    for one in everything[::5]:
        other = "pass" if one.verdict.outcome is Outcome.FAIL else "fail"
        assert one.compared(Claim(check=one.verdict.check, outcome=other)).result is Result.DISPUTE
