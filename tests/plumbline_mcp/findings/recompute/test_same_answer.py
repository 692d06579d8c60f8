"""Over records of clean and broken runs the recomputation finds the check's outcome, place and values."""

from collections.abc import Iterable

import pytest

from checks.verdict import Outcome
from plumbline_mcp.findings.comparison import Result
from tests.plumbline_mcp.findings.recompute import builds as built
from tests.plumbline_mcp.findings.recompute.conftest import (
    BROKEN_ONES,
    BROKEN_TWOS,
    CLEAN_ONES,
    CLEAN_TWOS,
    EXPORTS,
    LOADS,
    ROWS,
)
from tests.plumbline_mcp.findings.recompute.judged import Judged


def assert_same(one: Judged, outcome: Outcome) -> None:
    assert one.verdict.outcome is outcome, one.verdict.reason
    answer = one.answer()
    assert one.compared().result is Result.AGREE, (one.compared().why(), answer.reason)
    if outcome is Outcome.FAIL:
        assert answer.problems, answer
        assert one.headline()[1].code in {problem.code for problem in answer.problems}


def same_values(ones: Iterable[Judged]) -> int:
    """How many measured values were given, each of them right."""
    count = 0
    for one in ones:
        values = one.answer().values
        for name, value in one.measured().items():
            count += name in values
            assert name not in values or values[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name
    return count


@pytest.mark.parametrize("name", [*CLEAN_ONES, *CLEAN_TWOS])
def test_a_clean_training(trained: dict[str, Judged], name: str) -> None:
    assert_same(trained[name], Outcome.PASS)


@pytest.mark.parametrize("name", [*BROKEN_ONES, *BROKEN_TWOS])
def test_a_broken_training(trained: dict[str, Judged], name: str) -> None:
    assert_same(trained[name], Outcome.FAIL)


@pytest.mark.parametrize("name", ["clean", "tied"])
def test_a_clean_load(loads: dict[str, Judged], name: str) -> None:
    assert_same(loads[name], Outcome.PASS)


@pytest.mark.parametrize("name", [*LOADS, "one-rank"])
def test_a_wrong_load(loads: dict[str, Judged], name: str) -> None:
    assert_same(loads[name], Outcome.FAIL)


@pytest.mark.parametrize("name", built.RIGHT)
def test_a_clean_build(builds: dict[str, Judged], name: str) -> None:
    assert_same(builds[name], Outcome.PASS)


@pytest.mark.parametrize("name", [*built.WRONG, *built.ADAPTED, *built.WRONG_OSS, *built.MORE])
def test_a_wrong_build(builds: dict[str, Judged], name: str) -> None:
    assert_same(builds[name], Outcome.FAIL)


@pytest.mark.parametrize("name", ["clean", "mxfp4", "merged"])
def test_a_clean_export(exports: dict[str, Judged], name: str) -> None:
    assert_same(exports[name], Outcome.PASS)


@pytest.mark.parametrize(
    "name",
    [*EXPORTS, "generation_config", "chat_template", "older_template", "config", "unmerged", "merged-twice"],
)
def test_a_wrong_export(exports: dict[str, Judged], name: str) -> None:
    assert_same(exports[name], Outcome.FAIL)


@pytest.mark.parametrize("name", ["clean", "packed"])
def test_clean_rows(dumps: dict[str, Judged], name: str) -> None:
    assert_same(dumps[name], Outcome.PASS)


@pytest.mark.parametrize("name", [*ROWS, "packed-on"])
def test_wrong_rows(dumps: dict[str, Judged], name: str) -> None:
    assert_same(dumps[name], Outcome.FAIL)


def test_values_are_the_checks_own(
    trained: dict[str, Judged], loads: dict[str, Judged], exports: dict[str, Judged], dumps: dict[str, Judged]
) -> None:
    assert same_values(trained.values()) > 200
    assert same_values([*loads.values(), *exports.values(), *dumps.values()]) > 60
