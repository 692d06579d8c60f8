"""A verdict on the terminal: how many problems there are beside those that are shown."""

import io
from pathlib import Path

from rich.console import Console

from checks.verdict import Coverage, Outcome, Place, Problem, Verdict, part_of
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
