"""The harness around every check: outcomes combine as stated, no judge passes that misses its faults."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.check import Check, Context, InjectedFault, Inputs, NotApplicable, Progress, evaluate
from checks.errors import BadInput, Inconclusive, NotEvaluated
from checks.verdict import Caught, Coverage, Outcome, Part, Place, Problem, combine, part_of


class SumInputs(Inputs):
    values: tuple[int, ...]
    trouble: str = ""


@dataclass(frozen=True)
class SumCase:
    values: tuple[int, ...]


def _off_by_one(case: SumCase) -> SumCase:
    return SumCase((case.values[0] + 1, *case.values[1:]))


def _swap(case: SumCase) -> SumCase:
    raise NotApplicable("addition commutes")


class SumIsEven(Check[SumInputs, SumCase]):
    """A check of three lines: is each number even?"""

    name = "sum"
    title = "even"
    question = "is each number even?"
    reference = "arithmetic"
    rule = "exact"
    training = "none"
    records: ClassVar[tuple[str, ...]] = ()
    example = ""
    order = 0
    inputs = SumInputs
    faults = (
        InjectedFault("off by one", "numbers", "odd", _off_by_one),
        InjectedFault("swapped", "numbers", "odd", _swap),
    )

    def open(self, inputs: SumInputs, progress: Progress) -> SumCase:
        errors = {
            "bad": BadInput,
            "missing": NotEvaluated,
            "broken": Inconclusive,
            "crash": ZeroDivisionError,
        }
        if inputs.trouble:
            raise errors[inputs.trouble](f"asked for {inputs.trouble}")
        return SumCase(inputs.values)

    def context(self, inputs: SumInputs, case: SumCase) -> Context:
        return Context(settings={"count": len(case.values)})

    def judge(self, case: SumCase, progress: Progress) -> list[Part]:
        odd = [
            Problem(code="odd", message=f"{value} is odd", place=Place(row=index))
            for index, value in enumerate(case.values)
            if value % 2
        ]
        return [
            part_of(
                "numbers",
                odd,
                coverage=Coverage(judged=len(case.values), total=len(case.values), unit="numbers"),
            )
        ]

    def smallest(self, case: SumCase) -> SumCase:
        if not case.values:
            raise NotApplicable("no numbers")
        return replace(case, values=case.values[:1])


class AlwaysPasses(SumIsEven):
    """The mutant: whatever it sees, it passes."""

    def judge(self, case: SumCase, progress: Progress) -> list[Part]:
        return [Part(name="numbers", outcome=Outcome.PASS)]


def test_a_clean_input_passes_and_says_what_was_injected() -> None:
    verdict = evaluate(SumIsEven(), SumInputs(values=(2, 4)), system_version="1-abc")
    assert verdict.outcome is Outcome.PASS
    assert [(i.fault, i.result) for i in verdict.injected] == [
        ("off by one", Caught.CAUGHT),
        ("swapped", Caught.NOT_APPLICABLE),
    ]
    assert verdict.system_version == "1-abc"
    assert verdict.reason == "2 of 2 numbers"


class CountsSeveral(SumIsEven):
    """Counts the same and different things in several parts."""

    def judge(self, case: SumCase, progress: Progress) -> list[Part]:
        amounts = (
            ("config", 33, "fields"),
            ("generation", 4, "fields"),
            ("names", 7, "tensors"),
            ("shapes", 7, "tensors"),
            ("files", 1, "weight files"),
            ("tokenizer", 2, "files"),
        )
        return [
            *super().judge(case, progress),
            *(
                Part(name=name, outcome=Outcome.PASS, coverage=Coverage(judged=n, total=n, unit=unit))
                for name, n, unit in amounts
            ),
        ]


def test_a_pass_says_of_what_each_amount_is_where_the_unit_does_not() -> None:
    said = evaluate(CountsSeveral(), SumInputs(values=(2, 4))).reason
    assert said == (
        "2 of 2 numbers, config 33 of 33 fields, generation 4 of 4 fields, 7 of 7 tensors, "
        "files 1 of 1 weight files, tokenizer 2 of 2 files"
    )


def test_a_fault_fails_at_its_place() -> None:
    verdict = evaluate(SumIsEven(), SumInputs(values=(2, 3)))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.parts[0].problems[0].place == Place(row=1)
    assert "row 1" in verdict.reason


def test_a_judge_that_always_passes_comes_out_inconclusive() -> None:
    verdict = evaluate(AlwaysPasses(), SumInputs(values=(2, 4)))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "off by one" in verdict.reason


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [("missing", Outcome.NOT_EVALUATED), ("broken", Outcome.INCONCLUSIVE), ("crash", Outcome.INCONCLUSIVE)],
)
def test_what_could_not_be_judged_is_never_a_pass(trouble: str, outcome: Outcome) -> None:
    assert evaluate(SumIsEven(), SumInputs(values=(2,), trouble=trouble)).outcome is outcome


def test_bad_input_is_an_error_not_a_verdict() -> None:
    with pytest.raises(BadInput, match="asked for bad"):
        evaluate(SumIsEven(), SumInputs(values=(2,), trouble="bad"))


def test_judging_nothing_is_not_a_pass() -> None:
    verdict = evaluate(SumIsEven(), SumInputs(values=()))
    assert verdict.outcome is Outcome.NOT_EVALUATED


@given(st.lists(st.sampled_from(list(Outcome))))
def test_outcomes_combine_by_severity(outcomes: list[Outcome]) -> None:
    combined = combine(outcomes)
    if Outcome.FAIL in outcomes:
        assert combined is Outcome.FAIL
    elif Outcome.INCONCLUSIVE in outcomes:
        assert combined is Outcome.INCONCLUSIVE
    elif Outcome.NOT_EVALUATED in outcomes or not outcomes:
        assert combined is Outcome.NOT_EVALUATED
    else:
        assert combined is Outcome.PASS


def test_a_part_that_does_not_apply_does_not_count() -> None:
    class WithSpare(SumIsEven):
        def judge(self, case: SumCase, progress: Progress) -> list[Part]:
            spare = Part(name="gpu", outcome=Outcome.NOT_EVALUATED, applicable=False)
            return [*super().judge(case, progress), spare]

    assert evaluate(WithSpare(), SumInputs(values=(2,))).outcome is Outcome.PASS


def test_discovery_finds_a_check_in_every_module_that_defines_one() -> None:
    import checks

    modules = {
        path.stem for path in Path(checks.__file__).parent.glob("*.py") if "\nCHECK" in path.read_text()
    }
    assert set(checks.discover()) == modules


def test_a_pass_that_no_injected_fault_backs_is_inconclusive() -> None:
    class Commutes(SumIsEven):
        faults = (InjectedFault("swapped", "numbers", "odd", _swap),)

    verdict = evaluate(Commutes(), SumInputs(values=(2, 4)))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no injected fault applies" in verdict.reason
    assert evaluate(Commutes(), SumInputs(values=(3,))).outcome is Outcome.FAIL


def test_a_fault_that_the_input_has_already_is_not_called_missed() -> None:
    verdict = evaluate(SumIsEven(), SumInputs(values=(3,)))
    assert next((i.result, i.detail) for i in verdict.injected) == (
        Caught.NOT_APPLICABLE,
        "the input has numbers/odd already",
    )
