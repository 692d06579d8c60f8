"""Judges an environment: requirements, commit and files. Pure functions of the case."""

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import SplitResult, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from checks.environments.case import ImageCase
from checks.environments.installed import (
    judge_hooks,
    judge_installed,
    judge_unverifiable,
    overlaid,
    shown_name,
)
from checks.records.probe import DirectUrl, Distribution, FileState
from checks.references.declarations import Declared, Locked, Unreadable, expand
from checks.references.git_tree import GIT_BLOB, blob_digest
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of


def judge_requirements(case: ImageCase) -> Part:
    """Every requirement that applies is met; every locked version is the installed one."""
    installed: dict[str, Distribution] = {
        canonicalize_name(found.name): found for found in case.probe.distributions
    }
    about = case.pack.about.framework
    items = list(expand(case.probe, case.framework.name, about.extras, case.source))
    declared = {(str(item.requirement), item.by): item for item in items if isinstance(item, Declared)}
    unreadable = [item for item in items if isinstance(item, Unreadable)]
    problems = [problem for item in declared.values() for problem in _requirement(item, installed)]
    problems += [_unreadable(item) for item in unreadable]
    problems += _python(case)
    needed_here = _needed(case, installed, declared.values())
    for found in needed_here:
        problems += judge_installed(found, modules=found.name != case.framework.name)
    needed: set[str] = {canonicalize_name(item.requirement.name) for item in declared.values()}
    for locked in case.lock.values():
        problems += _locked(locked, installed, needed)
    direct = sum(item.direct for item in declared.values())
    total = len(declared) + len(unreadable) + len(case.lock)
    return part_of(
        "requirements",
        problems,
        coverage=Coverage(judged=total - len(unreadable), total=total, unit="requirements"),
        measurements=(
            Measurement(name="declared by the framework", value=direct, unit="requirements"),
            Measurement(
                name="declared by what it requires", value=len(declared) - direct, unit="requirements"
            ),
            Measurement(
                name="locked versions",
                value=sum(bool(locked.versions) for locked in case.lock.values()),
                unit="distributions",
            ),
        ),
        notes=(*(case.source.notes if case.source else ()), *overlaid(needed_here)),
        reason="" if total else "the framework declares no requirement here; name its source or a lock",
    )


def _needed(
    case: ImageCase, installed: dict[str, Distribution], declared: Iterable[Declared]
) -> list[Distribution]:
    """What is installed of the framework's distributions, of what is required, and of what is locked."""
    names = {canonicalize_name(item.requirement.name) for item in declared} | set(case.lock)
    names |= {canonicalize_name(name) for name in case.pack.about.framework.distributions}
    return [found for name, found in installed.items() if name in names]


def _requirement(item: Declared, installed: dict[str, Distribution]) -> Iterator[Problem]:
    requirement = item.requirement
    found = installed.get(canonicalize_name(requirement.name))
    wanted = f"{requirement} (declared by {item.by})"
    place = Place(package=requirement.name)
    if found is None:
        message = f"{requirement.name} is declared by {item.by} and not installed"
        yield Problem(
            code="requirement-missing",
            message=message,
            place=place,
            expected=wanted,
            found="not installed",
            next_step=_install(requirement),
        )
    elif requirement.url is not None:
        yield from _from_url(requirement, found, item.by)
    elif not _satisfies(requirement.specifier, found.version):
        yield Problem(
            code="requirement-unsatisfied",
            message=f"{requirement.name} {found.version} does not satisfy {requirement.specifier}",
            place=place,
            expected=wanted,
            found=found.version,
            next_step=_install(requirement),
        )


def _install(requirement: Requirement) -> str:
    """Names the distribution and nothing else: specifiers and addresses are text that anyone wrote."""
    return f"install the expected {shown_name(requirement.name)} in the job's environment"


def _satisfies(specifier: SpecifierSet, version: str) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not specifier


def _from_url(requirement: Requirement, found: Distribution, by: str) -> Iterator[Problem]:
    """A requirement on an address: what was installed has to say the same address (PEP 610)."""
    origin = found.direct_url
    wanted = str(requirement.url)
    if origin is not None and _is_from(wanted, origin):
        return
    yield Problem(
        code="requirement-unsatisfied",
        outcome=Outcome.FAIL if origin is not None else Outcome.INCONCLUSIVE,
        message=f"{found.name} was not recorded as installed from the address that {by} declares",
        place=Place(package=found.name),
        expected=wanted,
        found=origin.url if origin else f"{found.version} from an index",
        next_step=_install(requirement),
    )


def _is_from(wanted: str, origin: DirectUrl) -> bool:
    """Whether an installation was recorded from an address that PEP 508 spells ``vcs+url@revision#fragment``.

    PEP 610 records url, revision asked for (a tag, a branch, a short commit) and commit apart. An address
    that names no revision is met by any; one that names one by this one, or by the commit that it begins.
    """
    if origin.vcs_info is None:
        return origin.url in (wanted, wanted.split("#")[0])
    try:
        address, recorded = urlsplit(wanted), urlsplit(origin.url)
    except ValueError:  # no address at all, such as an unclosed [
        return False
    path, at, revision = address.path.rpartition("@") if "@" in address.path else (address.path, "", "")
    by_commit = _begins_commit(revision, origin.vcs_info.commit_id.lower())
    if at and not (by_commit or revision == origin.vcs_info.requested_revision):
        return False
    # installers leave names and passwords out of what they record
    same = (address.scheme.split("+")[-1], _host(address), path) == (
        recorded.scheme,
        _host(recorded),
        recorded.path,
    )
    return same or by_commit


def _host(address: SplitResult) -> str:
    return address.netloc.rpartition("@")[2]


def _begins_commit(revision: str, commit: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]{7,64}", revision) is not None and commit.startswith(revision.lower())


def _unreadable(item: Unreadable) -> Problem:
    return Problem(
        code="requirement-unreadable",
        outcome=Outcome.INCONCLUSIVE,
        message=f"{item.by} declares {item.text!r}, which is no valid requirement",
        place=Place(package=item.by),
    )


def _python(case: ImageCase) -> list[Problem]:
    text = case.framework.requires_python
    try:
        if not text or _satisfies(SpecifierSet(text), case.probe.python.version):
            return []
    except InvalidSpecifier:
        return [_unreadable(Unreadable(f"Requires-Python: {text}"[:200], case.framework.name))]
    return [
        Problem(
            code="requirement-unsatisfied",
            message=f"Python {case.probe.python.version} does not satisfy {text}",
            place=Place(package="python"),
            expected=text,
            found=case.probe.python.version,
        )
    ]


def _locked(locked: Locked, installed: dict[str, Distribution], needed: set[str]) -> Iterator[Problem]:
    if locked.line is not None:
        if locked.name in installed or locked.name not in needed:
            yield from _requirement(Declared(locked.line, "the lock", direct=False), installed)
        return
    found = installed.get(locked.name)
    expected = " or ".join(locked.versions)
    if found is None:
        if locked.required and locked.name not in needed:  # a needed one is already reported as missing
            yield Problem(
                code="requirement-missing",
                message=f"{locked.name} is locked at {expected} and not installed",
                place=Place(package=locked.name),
                expected=expected,
                found="not installed",
            )
    elif not any(_equals(version, found.version) for version in locked.versions):
        yield Problem(
            code="requirement-unsatisfied",
            message=f"{locked.name} {found.version} is installed and {expected} is locked",
            place=Place(package=locked.name),
            expected=f"=={expected}",
            found=found.version,
            next_step="install what the lock names",
        )


def _equals(locked: str, installed: str) -> bool:
    try:
        return SpecifierSet(f"=={locked}").contains(Version(installed), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return locked == installed


def judge_commit(case: ImageCase) -> Part:
    """The installed code is the commit, or the version, under test."""
    problems: list[Problem] = []
    notes: list[str] = []
    stated = case.probe.module.version
    if stated is not None and not _same_version(stated, case.framework.version):
        what = f"the code of {case.probe.module.name} states version {stated}, its metadata another"
        problems.append(_identity("version-differs", what, case.framework.version, stated))
    if case.expected_version and not _same_version(case.expected_version, case.framework.version):
        what = f"{case.framework.name} {case.framework.version} is installed"
        problems.append(_identity("version-differs", what, case.expected_version, case.framework.version))
    if case.expected_commit:
        problems += _commit(case, case.expected_commit, notes)
    elif not case.expected_version:
        notes.append(
            f"no commit was named: {shown_name(case.framework.name)} {_version(case)} is judged by itself"
        )
    return part_of(
        "commit",
        problems,
        coverage=Coverage(judged=1, total=1, unit="framework"),
        measurements=(
            Measurement(name="installed version", value=_version(case), bound=case.expected_version),
            Measurement(name="installed commit", value=_hex(case.commit), bound=case.expected_commit),
        ),
        notes=tuple(notes),
    )


def _version(case: ImageCase) -> str:
    """The installed version as the specification spells one: metadata can say anything."""
    try:
        return str(Version(case.framework.version))
    except InvalidVersion:
        return "(not a version)"


def _hex(commit: str | None) -> str | None:
    return commit if commit is None or re.fullmatch(r"[0-9a-f]{7,64}", commit) else "(not a commit)"


def _commit(case: ImageCase, expected: str, notes: list[str]) -> Iterator[Problem]:
    if case.commit is not None:
        if not case.commit.startswith(expected):
            what = f"{case.framework.name} is installed from another commit"
            yield _identity("commit-differs", what, expected, case.commit)
    elif case.source_differs is None:
        yield Problem(
            code="commit-unknown",
            outcome=Outcome.INCONCLUSIVE,
            message=f"the wheel of {case.framework.name} {case.framework.version} names no commit",
            place=Place(package=case.framework.name),
            expected=expected,
            next_step="name a checkout of that commit (source): its files are compared; or name the version",
        )
    elif case.source_differs:
        first, count = case.source_differs[0], len(case.source_differs)
        what = f"{count} installed file(s) are not those of the commit, first {first}"
        yield _identity("commit-differs", what, expected, f"{first} differs")
    else:
        notes.append("the wheel names no commit; its code files equal those of the checkout")


def _identity(code: str, message: str, expected: str, found: str) -> Problem:
    return Problem(code=code, message=message, expected=expected, found=found)


def _same_version(first: str, second: str) -> bool:
    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return first == second


def judge_files(case: ImageCase) -> Part:
    """Every file of the framework is the one that was recorded, and it is the framework that is imported."""
    files = case.files
    problems = [problem for state in files.files for problem in _file(state, files.reference)]
    problems += [
        Problem(
            code="file-unexpected",
            message=f"{name} can be imported and is in no {files.reference}",
            place=Place(file=name),
        )
        for name in files.unrecorded
    ]
    problems += judge_unverifiable(files)
    problems += judge_hooks(case)
    problems += _imported(case)
    if files.missing_record is not None:
        problems.append(
            Problem(
                code="record-missing",
                outcome=Outcome.INCONCLUSIVE,
                message=f"no file can be compared: {files.missing_record}",
                place=Place(package=case.framework.name),
                next_step="install the framework from a wheel, or from a git checkout",
            )
        )
    judged = sum(state.measured is not None for state in files.files)
    return part_of(
        "files",
        problems,
        coverage=Coverage(judged=judged, total=len(files.files), unit="files"),
        measurements=(
            Measurement(
                name="byte code compared with its source", value=files.bytecode.compared, unit="files"
            ),
        ),
        notes=(f"compared with: {files.reference}",),
    )


def _file(state: FileState, reference: str) -> Iterator[Problem]:
    place = Place(file=state.name)
    measured = _measured(state)
    if measured is None:
        known = state.algorithm in ("sha256", "sha384", "sha512", GIT_BLOB)
        yield Problem(
            code="file-missing" if known else "record-missing",
            outcome=Outcome.FAIL if known else Outcome.INCONCLUSIVE,
            message=f"{state.name} cannot be read"
            if known
            else f"{state.name}: {state.algorithm} is not known",
            place=place,
            expected=state.recorded,
        )
    elif measured != state.recorded:
        yield Problem(
            code="file-edited",
            message=f"{state.name} differs from its {reference}",
            place=place,
            expected=state.recorded,
            found=measured,
            next_step="reinstall the framework",
        )


def _measured(state: FileState) -> str | None:
    """The digest; of a file whose bytes are at hand it is computed from them."""
    if state.content is None:
        return state.measured
    content = base64.b64decode(state.content)
    if state.algorithm == GIT_BLOB:
        return blob_digest(content, state.recorded)
    return base64.urlsafe_b64encode(hashlib.new(state.algorithm, content).digest()).rstrip(b"=").decode()


def _imported(case: ImageCase) -> list[Problem]:
    """The module that Python would import is one of the judged files."""
    origin, location = case.probe.module.origin, case.framework.location.rstrip("/")
    if case.files.reference.startswith("git tree") or case.files.missing_record is not None:
        return []
    names = {f"{location}/{entry.name}" for found in case.probe.framework for entry in found.files}
    if origin in names or not names:
        return []
    if case.probe.module.folders:
        return _namespace(case, f"{location}/{case.probe.module.name.replace('.', '/')}")
    return [
        Problem(
            code="module-shadowed",
            message=f"{case.probe.module.name} would be imported from {origin}, which is no file of it",
            place=Place(file=origin, package=case.framework.name),
            expected=f"a file below {location}",
            found=str(origin),
        )
    ]


def _namespace(case: ImageCase, own: str) -> list[Problem]:
    """A namespace package is made of several folders; of one module in two of them the first is imported."""
    folders = [os.path.normpath(folder) for folder in case.probe.module.folders]
    if folders[0] == os.path.normpath(own):
        return []
    return [
        Problem(
            code="module-shadowed",
            outcome=Outcome.INCONCLUSIVE if os.path.normpath(own) in folders else Outcome.FAIL,
            message=f"modules of {case.probe.module.name} would be looked for in {folders[0]} first",
            place=Place(file=folders[0], package=case.framework.name),
            expected=own,
            found=folders[0],
            next_step=f"take the other folder of {shown_name(case.framework.name)} off the path",
        )
    ]
