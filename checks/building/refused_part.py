"""What the framework documents as unsupported was launched, and it refused each of it by name."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from checks.building.case import BuildCase
from checks.loading.parts import not_applicable
from checks.records.built_models import RefusalLine
from checks.references.packs import Refusal
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of


def refused_part(case: BuildCase) -> Part:
    """Every launch of refused settings ended with the framework's own sentence about them."""
    cited = case.pack.refusals() if case.pack else ()
    asked = [each for each in cited if _is_of(each, case.framework_version)]
    if not asked:
        return not_applicable("refused", "the pack cites nothing that this version has to refuse")
    launched: Mapping[str, RefusalLine] = {line.name: line for line in case.refusals}
    problems = [problem for each in asked for problem in _problems(each, launched.get(each.name))]
    judged = sum(each.name in launched for each in asked)
    notes = tuple(f"{each.name}: {each.description} ({each.citation})" for each in asked)
    return part_of(
        "refused", problems, coverage=Coverage(judged=judged, total=len(asked), unit="launches"), notes=notes
    )


def _is_of(refusal: Refusal, version: str) -> bool:
    if not refusal.versions:
        return True
    try:
        return SpecifierSet(refusal.versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # asked for all the same: a version that is not known excuses nothing


def _problems(refusal: Refusal, line: RefusalLine | None) -> Iterator[Problem]:
    place = Place(field=refusal.name)
    settings = ", ".join(f"{name}={value}" for name, value in refusal.settings.items())[:200]
    if line is None:
        yield Problem(
            code="refusal-not-launched",
            outcome=Outcome.NOT_EVALUATED,
            message=f"{settings} was not launched, though {refusal.citation} documents it as unsupported",
            place=place,
            next_step="rerun the procedure build with this version's pack",
        )
    elif line.code == 0 and not line.timed_out:
        yield Problem(
            code="accepted-though-refused",
            message=f"{settings} starts without a word: {refusal.citation} documents it as unsupported",
            place=place,
            expected=refusal.says,
            found="code 0",
            next_step="do not train with it; report to the framework that the refusal is gone",
        )
    elif line.timed_out or not fnmatchcase(line.said, refusal.says):
        ended = "did not end" if line.timed_out else f"ended with code {line.code}"
        yield Problem(
            code="refused-otherwise",
            outcome=Outcome.INCONCLUSIVE,
            message=f"{settings} {ended}, and what it said last is not the refusal: {_plain(line.said)}",
            place=place,
            expected=refusal.says,
            found=_plain(line.said),
            next_step="launch the dry run with these settings and read its log",
        )


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)[:300]
