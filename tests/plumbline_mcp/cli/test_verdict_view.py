"""A verdict on the terminal: how many problems there are beside those that are shown."""

import io
from pathlib import Path

from rich.console import Console

from checks.verdict import Coverage, Outcome, Part, Place, Problem, Verdict, part_of
from plumbline_mcp.cli.verdict_view import print_verdict
from plumbline_mcp.workspace import StoredVerdict


def test_a_kind_counts_what_is_not_listed() -> None:
    wrong = [
        Problem(code="stop-unlabelled", message="no stop token is labelled", place=Place(row=row))
        for row in range(7473)
    ]
    part = part_of("stop", wrong, coverage=Coverage(judged=7473, total=7473, unit="rows"))
    verdict = Verdict(id="data-0001", check="data", outcome=Outcome.FAIL, reason="stop", parts=(part,))
    out = io.StringIO()
    stored = StoredVerdict(verdict=verdict, inputs={}, created="2026-11-30T12:00:00+00:00", sha256="ab" * 32)
    print_verdict(stored, Path("home"), Console(file=out, width=160))
    text = out.getvalue()
    assert "stop/stop-unlabelled × 7,473, 50 listed" in text
    assert "5 of 7,473 problems shown; plumbline show data-0001 lists 50" in text
    assert "7,473 of 7,473 rows" in text


def test_parts_that_one_crash_kept_from_being_judged_say_so_once() -> None:
    crash = "rank 0 ended with exit code 1"
    names = ("token-weights", "loss", "gradient", "clip", "update")
    parts = tuple(Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=crash) for name in names)
    other = Part(name="frozen", outcome=Outcome.NOT_EVALUATED, reason="nothing is frozen")
    verdict = Verdict(
        id="optimizer_step-0001",
        check="optimizer_step",
        outcome=Outcome.NOT_EVALUATED,
        reason="the run failed",
        parts=(*parts, other),
    )
    out = io.StringIO()
    stored = StoredVerdict(verdict=verdict, inputs={}, created="2026-11-30T12:00:00+00:00", sha256="ab" * 32)
    print_verdict(stored, Path("home"), Console(file=out, width=160))
    text = out.getvalue()
    assert text.count(crash) == 1
    assert "token-weights, loss, gradient, clip, update" in text
    assert "nothing is frozen" in text
