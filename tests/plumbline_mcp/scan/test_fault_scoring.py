"""The score of a scan: found at its place and alone, or exactly what went otherwise."""

from typing import Any

import pytest

from checks.verdict import Outcome, Place, Problem, Verdict, part_of
from plumbline_mcp.scan.fault_entries import Expected, FaultEntry
from plumbline_mcp.scan.fault_scoring import EntryResult, Score
from plumbline_mcp.scan.fault_scoring import score as score_scan
from plumbline_mcp.scan.scanning import DryRun, Scanned

_EXPECTED = Expected(check="export", part="values", code="transposed", place={"tensor": "model.layers.*"})


def score(entry: FaultEntry, verdicts: list[Verdict], dry_run: DryRun | None = None) -> EntryResult:
    return score_scan(entry, Scanned(verdicts=tuple(verdicts), dry_run=dry_run))


def _entry(**changed: Any) -> FaultEntry:
    given: dict[str, Any] = {
        "id": "transposed",
        "title": "t",
        "mechanism": "m",
        "pattern": 6,
        "silent": True,
        "source": "s",
        "checks": ("export",),
        "expect": (_EXPECTED,),
    }
    return FaultEntry.model_validate(given | changed)


def _verdict(*problems: tuple[str, Problem], outcome: Outcome = Outcome.FAIL) -> Verdict:
    names = dict.fromkeys(["values", "names", *(name for name, _ in problems)])
    parts = tuple(part_of(name, [p for part, p in problems if part == name]) for name in names)
    return Verdict(check="export", outcome=outcome, reason="r", parts=parts, id="export-0001")


def _problem(code: str, tensor: str, outcome: Outcome = Outcome.FAIL) -> Problem:
    return Problem(code=code, message="m", place=Place(tensor=tensor), outcome=outcome)


AT = ("values", _problem("transposed", "model.layers.1.down_proj"))
ELSEWHERE = ("values", _problem("transposed", "lm_head.weight"))
OTHER_CODE = ("values", _problem("permuted", "model.layers.1.down_proj"))
OTHER_PART = ("names", _problem("tensor-missing", "lm_head.weight"))
UNDECIDED = ("names", _problem("looks-trained", "x", Outcome.INCONCLUSIVE))


@pytest.mark.parametrize(
    ("problems", "expected"),
    [
        ([AT], Score.FOUND),
        ([AT, ELSEWHERE], Score.FOUND),
        ([ELSEWHERE], Score.WRONG_PLACE),
        ([OTHER_CODE], Score.MISSED),
        ([], Score.MISSED),
        ([AT, OTHER_CODE], Score.EXTRA),
        ([AT, OTHER_PART], Score.EXTRA),
        ([AT, UNDECIDED], Score.EXTRA),
    ],
)
def test_a_fault_is_found_only_at_its_place_and_alone(
    problems: list[tuple[str, Problem]], expected: Score
) -> None:
    assert score(_entry(), [_verdict(*problems)]).score is expected


def test_what_follows_from_the_fault_is_no_extra() -> None:
    also = (Expected(check="export", part="names", code="tensor-missing"),)
    assert score(_entry(also=also), [_verdict(AT, OTHER_PART)]).score is Score.FOUND


def test_another_check_that_fails_is_an_extra() -> None:
    image = _verdict(("files", _problem("file-edited", "x"))).model_copy(update={"check": "image"})
    result = score(_entry(checks=("image", "export")), [image, _verdict(AT)])
    assert result.score is Score.EXTRA
    assert result.extra == ("image: files/file-edited",)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (_verdict(outcome=Outcome.PASS), Score.QUIET),
        (_verdict(AT), Score.FALSE_ALARM),
        (_verdict(outcome=Outcome.INCONCLUSIVE), Score.UNDECIDED),
        (_verdict(outcome=Outcome.NOT_EVALUATED), Score.UNDECIDED),
    ],
)
def test_a_clean_entry_is_quiet_only_when_everything_passes(verdict: Verdict, expected: Score) -> None:
    assert score(_entry(clean=True, expect=()), [verdict]).score is expected


def test_the_same_code_that_could_not_be_judged_is_not_found() -> None:
    undecided = ("values", _problem("transposed", "model.layers.1.down_proj", Outcome.INCONCLUSIVE))
    assert score(_entry(), [_verdict(undecided)]).score is Score.MISSED


@pytest.mark.parametrize(
    "changed",
    [
        {"clean": True},
        {"expect": ()},
        {"checks": ("data",)},
        {"pattern": 8},
        {"plant": {"hook": "../elsewhere.py"}},
        {"expect": ({"check": "export", "part": "p", "code": "c", "place": {"galaxy": 1}},)},
        {"tolerance": 1},
        {"checks": ("elsewhere",)},
        {"expect": ({"check": "elsewhere", "part": "p", "code": "c"},)},
        {"refused": "ValueError"},
    ],
)
def test_an_entry_that_does_not_fit_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        _entry(**changed)


REFUSED = DryRun(run_id="dry_run-0001", started=False, sentence="the dry run ended: ValueError: no bf16 here")


@pytest.mark.parametrize(
    ("wanted", "dry_run", "expected"),
    [
        ("ValueError: no bf16", REFUSED, Score.FOUND),
        ("TypeError", REFUSED, Score.WRONG_PLACE),
        ("ValueError", DryRun(run_id="dry_run-0001", started=True), Score.MISSED),
        ("ValueError", None, Score.MISSED),
    ],
)
def test_a_refused_recipe_is_found_by_its_sentence(
    wanted: str, dry_run: DryRun | None, expected: Score
) -> None:
    entry = _entry(expect=(), refused=wanted, checks=("dry_run",))
    assert score(entry, [], dry_run).score is expected


def test_a_dry_run_that_fails_unexpectedly_is_an_alarm() -> None:
    assert score(_entry(clean=True, expect=()), [_verdict(outcome=Outcome.PASS)], REFUSED).score is (
        Score.FALSE_ALARM
    )
    assert score(_entry(), [_verdict(AT)], REFUSED).score is Score.EXTRA
