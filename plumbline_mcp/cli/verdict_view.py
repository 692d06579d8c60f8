"""A verdict on the terminal: outcome, parts, problems with their places, injected faults, next step."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from checks.verdict import Outcome, Part, Problem, Verdict
from plumbline_mcp.cli.screen import caught_text, console, outcome_text, table, untrusted

_PROBLEMS_SHOWN = 8
_VALUE = 240
"""Characters shown of an expected or found value; the stored verdict holds the whole."""


def print_verdict(
    verdict: Verdict, home: Path, screen: Console | None = None, problems: int | None = _PROBLEMS_SHOWN
) -> None:
    """Print a verdict and at most so many ``problems`` (None: all listed); ``home`` is its workspace."""
    out = screen or console()
    out.print(_headline(verdict))
    for name, value in verdict.target.items():
        out.print(untrusted(f"  {name}: ", "dim") + untrusted(value, limit=_VALUE))
    if verdict.parts:
        out.print(table("part", "outcome", "judged", "why", rows=map(_part_row, verdict.parts)))
    _print_problems(out, verdict, problems)
    if verdict.injected:
        rows = [(untrusted(i.fault), caught_text(i.result), untrusted(i.detail)) for i in verdict.injected]
        out.print(table("injected fault", "result", "where the check saw it", rows=rows))
    for stand_in in verdict.stand_ins:
        out.print(Text("stand-in: ", "dim") + untrusted(stand_in))
    out.print(_footer(verdict, home))
    if verdict.next_step:
        out.print(Text("next: ", "bold") + untrusted(verdict.next_step))


def _headline(verdict: Verdict) -> Text:
    line = outcome_text(verdict.outcome)
    line.append(f"  {verdict.check}", "bold")
    return line + Text("  ") + untrusted(verdict.reason)


def _part_row(part: Part) -> tuple[Text, Text, Text, Text]:
    why = untrusted(part.reason or "; ".join(part.notes), limit=_VALUE)
    if part.problem_count > 1:
        why.append(f" (and {part.problem_count - 1} more)", "dim")
    judged = str(part.coverage) if part.coverage else ""
    return untrusted(part.name), outcome_text(part.outcome, part.applicable), untrusted(judged), why


def _print_problems(out: Console, verdict: Verdict, limit: int | None) -> None:
    listed = verdict.problems()
    for number, (part, problem) in enumerate(listed[:limit], 1):
        out.print(_problem(number, part, problem))
    counted = sum(part.problem_count for part in verdict.parts)
    shown = len(listed[:limit])
    if counted > shown:
        more = f"; plumbline show {verdict.id} lists {len(listed)}" if len(listed) > shown else ""
        out.print(untrusted(f"{shown} of {counted} problems{more}", "dim"))


def _problem(number: int, part: str, problem: Problem) -> Text:
    style = "red" if problem.outcome is Outcome.FAIL else "yellow"
    lines = Text(f"{number}. ") + untrusted(f"{part}/{problem.code}", style)
    if str(problem.place):
        lines = lines + Text("  at ") + untrusted(str(problem.place), "bold")
    lines = lines + Text("\n   ") + untrusted(problem.message)
    facts = {
        "expected": problem.expected,
        "found": problem.found,
        "documented in": problem.citation,
        "next": problem.next_step,
    }
    for name, value in facts.items():
        if value is not None:
            lines = lines + Text(f"\n   {name:<9} ", "dim") + untrusted(value, limit=_VALUE)
    return lines


def _footer(verdict: Verdict, home: Path) -> Text:
    stored = f"stored as {verdict.id} in {home}" if verdict.id else f"not stored; workspace {home}"
    return untrusted(f"{stored} · {verdict.seconds:.1f} s · system version {verdict.system_version}", "dim")
