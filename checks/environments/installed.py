"""Judges whether what is installed is what its metadata says: one version, its modules there, no hooks."""

from collections.abc import Iterable, Iterator

from packaging.utils import canonicalize_name

from checks.environments.case import ImageCase
from checks.environments.checkout import FilesCase
from checks.records.probe import Distribution
from checks.verdict import Outcome, Place, Problem

_NAME_SHOWN = 100


def shown_name(name: str) -> str:
    """A distribution's normalised name, clipped: what a next step may quote of metadata, and nothing more."""
    return canonicalize_name(name)[:_NAME_SHOWN]


def judge_installed(found: Distribution, *, modules: bool) -> Iterator[Problem]:
    """One version in its folder; with ``modules`` also: its modules are there and are what is imported."""
    name, place = shown_name(found.name), Place(package=found.name)
    versions = sorted(set(found.versions_here))
    if len(versions) > 1:
        yield Problem(
            code="installed-twice",
            outcome=Outcome.INCONCLUSIVE,
            message=f"{found.name} says that it is {' and '.join(versions)} in one folder",
            place=place,
            expected="one version",
            found=", ".join(versions),
            next_step=f"uninstall {name} until none is left, then install it once",
        )
    if not modules:
        return
    for file in found.missing:
        yield Problem(
            code="file-missing",
            message=f"{found.name} {found.version} is listed and its {file} is not there",
            place=Place(package=found.name, file=file),
            expected=file,
            found="not there",
            next_step=f"reinstall {name}",
        )
    for origin in found.shadowed:
        yield Problem(
            code="module-shadowed",
            message=f"{found.name} would be imported from {origin}, which nothing recorded",
            place=Place(package=found.name, file=origin),
            expected=f"a file below {found.location}",
            found=origin,
            next_step=f"take the other copy of {name} off the path",
        )


def overlaid(distributions: Iterable[Distribution]) -> tuple[str, ...]:
    """A note on what lies in more than one folder of the path; the first is what is imported."""
    names = sorted(shown_name(found.name) for found in distributions if found.folders > 1)
    if not names:
        return ()
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (f"in more than one folder of the path, the first is judged: {', '.join(names[:5])}{more}",)


def judge_hooks(case: ImageCase) -> Iterator[Problem]:
    """Code that runs at the interpreter's start and that nothing vouches for: it can change any answer."""
    for hook in case.probe.startup:
        yield Problem(
            code="startup-hook",
            outcome=Outcome.INCONCLUSIVE,
            message=f"{hook.file} runs whenever the interpreter starts, and {hook.why}",
            place=Place(file=hook.file),
            next_step="remove the file, or install it as part of a package",
        )


def judge_unverifiable(files: FilesCase) -> Iterator[Problem]:
    """Files recorded without a digest, and byte code that runs in place of the source and is not its own.

    Names and constants are decided by the source alone: another one is a fail. Instructions may change with a
    bug-fix release of the interpreter that keeps the magic number (2 of the 2,912 files of transformers 5.24
    between Python 3.11.2 and 3.11.7, none of which had another name or constant): inconclusive.
    """
    for name in files.unhashed:
        yield Problem(
            code="record-missing",
            outcome=Outcome.INCONCLUSIVE,
            message=f"{name} is recorded without a digest",
            place=Place(file=name),
            next_step="reinstall the framework",
        )
    for found in files.bytecode.differing:
        decided = found.what != "instructions"
        yield Problem(
            code="bytecode-differs",
            outcome=Outcome.FAIL if decided else Outcome.INCONCLUSIVE,
            message=f"{found.file} runs in place of {found.source} and is not what that compiles to:"
            f" other {found.what}"
            + ("" if decided else " (another release of the interpreter may have made it, or someone)"),
            place=Place(file=found.file),
            expected=f"byte code of {found.source}",
            found=f"other {found.what}",
            next_step="remove the framework's __pycache__ folders: Python makes them anew from the sources",
        )
    for reason in files.bytecode.unread:
        yield Problem(
            code="bytecode-unread",
            outcome=Outcome.INCONCLUSIVE,
            message=f"byte code could not be compared with its source: {reason}",
            next_step="remove the framework's __pycache__ folders and judge it again",
        )
