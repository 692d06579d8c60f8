"""What tests of checks look up in a verdict."""

from checks.verdict import Part, Verdict


def part(verdict: Verdict, name: str) -> Part:
    """A part by name."""
    return next(entry for entry in verdict.parts if entry.name == name)


def codes(verdict: Verdict) -> set[tuple[str, str]]:
    """Part and code of every problem."""
    return {(name, problem.code) for name, problem in verdict.problems()}
