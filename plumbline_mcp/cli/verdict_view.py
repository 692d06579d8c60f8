"""A verdict on the terminal: outcome, parts, problems with their places, injected faults, next step."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from checks.verdict import Outcome, Part, Verdict
from plumbline_mcp.cli.screen import caught_text, console, labelled, outcome_text, table, untrusted
from plumbline_mcp.report.problems import ProblemGroup, grouped
from plumbline_mcp.report.subjects import inputs_of
from plumbline_mcp.workspace import StoredVerdict

_PROBLEMS_SHOWN = 5
"""Places shown of each kind of problem."""
_FACTS = {
    "message": "",
    "expected": "expected",
    "found": "found",
    "citation": "documented in",
    "next_step": "next",
}
_VALUE = 240
"""Characters shown of an expected or found value; the stored verdict holds the whole."""
_NOTE = 100
"""Characters shown of a passing part's notes."""


def print_verdict(
    stored: StoredVerdict, home: Path, screen: Console | None = None, problems: int | None = _PROBLEMS_SHOWN
) -> None:
    """Print a verdict of the workspace at ``home``, at most so many ``problems`` of a kind (None: all)."""
    out, verdict = screen or console(), stored.verdict
    out.print(_headline(verdict))
    for name, value in (*inputs_of(stored), *verdict.target.items()):
        out.print(Text.assemble(untrusted(f"  {name}: ", "dim"), untrusted(value, limit=_VALUE)))
    if verdict.parts:
        out.print(table("part", "outcome", "judged", "why", rows=_part_rows(verdict.parts)))
    _print_problems(out, verdict, problems)
    if verdict.injected:
        rows = [(untrusted(i.fault), caught_text(i.result), untrusted(i.detail)) for i in verdict.injected]
        out.print(table("injected fault", "result", "where the check saw it", rows=rows))
    for stand_in in verdict.stand_ins:
        out.print(labelled("stand-in: ", stand_in, "dim"))
    out.print(_footer(verdict, home))
    if verdict.next_step:
        out.print(labelled("next: ", verdict.next_step))


def _headline(verdict: Verdict) -> Text:
    check = untrusted(f"  {verdict.check}  ", "bold")
    return Text.assemble(outcome_text(verdict.outcome), check, untrusted(verdict.reason))


def _part_rows(parts: Sequence[Part]) -> Iterator[tuple[Text, Text, Text, Text]]:
    """A row a part; parts that judged nothing for one reason (a crash, a missing file) share one."""
    shared: dict[object, list[Part]] = {}
    for number, part in enumerate(parts):
        alike = part.reason and part.coverage is None and not part.problem_count
        shared.setdefault((part.outcome, part.applicable, part.reason) if alike else number, []).append(part)
    for first, *others in shared.values():
        name, outcome, judged, why = _part_row(first)
        names = Text(", ").join([name, *(untrusted(other.name) for other in others)])
        yield names, outcome, judged, why


def _part_row(part: Part) -> tuple[Text, Text, Text, Text]:
    notes = "; ".join(part.notes)
    why = untrusted(part.reason or (notes if len(notes) <= _NOTE else notes[:_NOTE] + "…"), limit=_VALUE)
    if part.problem_count > 1:
        why.append(f" (and {part.problem_count - 1:,} more)", "dim")
    judged = str(part.coverage) if part.coverage else ""
    return untrusted(part.name), outcome_text(part.outcome, part.applicable), untrusted(judged), why


def _print_problems(out: Console, verdict: Verdict, limit: int | None) -> None:
    groups = [group for part in verdict.parts for group in grouped(part)]
    shown = 0
    for group in groups:
        _print_group(out, group, limit)
        shown += len(group.problems[:limit])
    listed, counted = len(verdict.problems()), verdict.problem_count
    if counted > shown:
        more = f"; plumbline show {verdict.id} lists {listed:,}" if listed > shown else ""
        out.print(untrusted(f"{shown:,} of {counted:,} problems shown{more}", "dim"))


def _print_group(out: Console, group: ProblemGroup, limit: int | None) -> None:
    style = "red" if group.outcome is Outcome.FAIL else "yellow"
    named = f"{group.part}/{group.code} {group.amount}".rstrip()
    out.print(Text.assemble(outcome_text(group.outcome), " ", untrusted(named, style)))
    for fact, name in _FACTS.items():
        if group.shared(fact) is not None:
            out.print(_indented(_fact(name, group.shared(fact))))
    for problem in group.problems[:limit]:
        told = Text.assemble(("at ", "dim"), untrusted(str(problem.place) or "everywhere", "bold"))
        for fact, name in _FACTS.items():
            if group.differing(fact) and getattr(problem, fact) is not None:
                told = Text.assemble(told, "\n  ", _fact(name, getattr(problem, fact)))
        out.print(_indented(told))


def _fact(name: str, value: str | None) -> Text:
    return labelled(f"{name}: " if name else "", value, "dim", _VALUE)


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2), expand=False)


def _footer(verdict: Verdict, home: Path) -> Text:
    stored = f"stored as {verdict.id} in {home}" if verdict.id else f"not stored; workspace {home}"
    return untrusted(f"{stored} · {verdict.seconds:.1f} s · system version {verdict.system_version}", "dim")
