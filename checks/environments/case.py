"""The case of check image: what is installed beside what is declared, all read and not yet judged."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from checks.check import Progress
from checks.environments.checkout import FilesCase, differs_from_source, editable_files
from checks.errors import BadInput, NotEvaluated
from checks.records.bytecode import compare_bytecode
from checks.records.probe import Distribution, EnvironmentProbe
from checks.references import git_tree
from checks.references.declarations import Locked, Source, read_lock, read_source
from checks.references.packs import Pack
from checks.verdict import Evidence


@dataclass(frozen=True)
class ImageCase:
    """One environment, one framework."""

    pack: Pack
    probe: EnvironmentProbe
    framework: Distribution
    expected_commit: str | None
    expected_version: str | None
    commit: str | None
    """The commit that was installed, where that is known."""
    source_differs: tuple[str, ...] | None
    """Installed code files that differ from the checkout at the expected commit; None: not compared."""
    source: Source | None
    files: FilesCase
    lock: dict[str, Locked] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()


def open_case(
    pack: Pack,
    probe: EnvironmentProbe,
    commit: str | None,
    source: Path | None,
    lock: Path | None,
    evidence: tuple[Evidence, ...],
) -> ImageCase:
    """Read everything that the judge needs. Raises `BadInput` and `NotEvaluated`."""
    framework = _framework(pack, probe)
    expected_commit, expected_version = _expected(commit, source)
    editable = _editable_folder(framework)
    recorded = _recorded_commit(framework, editable)
    declared = source or editable
    differs = None
    if source is not None and recorded is None and expected_commit is not None:
        differs = differs_from_source(pack.about.framework.module, probe, framework, source, expected_commit)
    return ImageCase(
        pack=pack,
        probe=probe,
        framework=framework,
        expected_commit=expected_commit,
        expected_version=expected_version,
        commit=recorded,
        source_differs=differs,
        source=read_source(declared, pack.about.framework.extras) if declared else None,
        files=editable_files(probe, framework, editable) if editable else _recorded_files(probe),
        lock=read_lock(lock, probe.markers) if lock else {},
        evidence=evidence,
    )


def _framework(pack: Pack, probe: EnvironmentProbe) -> Distribution:
    wanted = pack.about.framework.distributions[0]
    for distribution in probe.distributions:
        if canonicalize_name(distribution.name) == canonicalize_name(wanted):
            return distribution
    raise NotEvaluated(
        f"{probe.python.executable} has no {wanted} installed",
        "name the interpreter that the job is started with",
    )


def _expected(commit: str | None, source: Path | None) -> tuple[str | None, str | None]:
    """The commit and the version under test, from what the user named."""
    if source is not None and not source.is_dir():
        raise BadInput(f"there is no folder {source}", "name a git checkout of the framework")
    if commit is None:
        return (git_tree.head(source), None) if source is not None else (None, None)
    if re.fullmatch(r"[0-9a-fA-F]{7,64}", commit) and not re.fullmatch(r"[0-9]+", commit):
        return commit.lower(), None
    if re.fullmatch(r"[0-9]{7,64}", commit):
        return commit, None
    try:
        return None, str(Version(commit))
    except InvalidVersion as error:
        raise BadInput(
            f"{commit!r} is neither a commit (at least 7 hex digits) nor a version", "give one of the two"
        ) from error


def _editable_folder(framework: Distribution) -> Path | None:
    """The checkout of an editable installation."""
    origin = framework.direct_url
    if origin is None or origin.dir_info is None or not origin.dir_info.editable:
        return None
    return Path(unquote(urlsplit(origin.url).path))


def _recorded_commit(framework: Distribution, editable: Path | None) -> str | None:
    if framework.direct_url is not None and framework.direct_url.vcs_info is not None:
        return framework.direct_url.vcs_info.commit_id.lower() or None
    if editable is not None:
        try:
            return git_tree.head(editable)
        except NotEvaluated:
            return None
    return None


def _recorded_files(probe: EnvironmentProbe) -> FilesCase:
    without = [entry.name for entry in probe.framework if not entry.has_record]
    places = {found.name: found.location for found in probe.distributions}
    folders = {canonicalize_name(name): folder for name, folder in places.items()}
    return FilesCase(
        reference=" and ".join(dict.fromkeys(entry.reference for entry in probe.framework)) or "RECORD",
        files=tuple(state for entry in probe.framework for state in entry.files),
        unrecorded=tuple(name for entry in probe.framework for name in entry.unrecorded),
        unhashed=tuple(name for entry in probe.framework for name in entry.unhashed),
        sources=tuple(
            os.path.normpath(f"{folders[canonicalize_name(entry.name)]}/{state.name}")
            for entry in probe.framework
            for state in entry.files
            if state.name.endswith(".py")
        ),
        missing_record=f"{', '.join(without)} was installed without a RECORD" if without else None,
    )


def with_bytecode(case: ImageCase, python: Path, progress: Progress) -> ImageCase:
    """The case with its framework's byte code compared, inside the judged interpreter, with the sources.

    Byte code that the installer recorded with a digest, and that has it, is the package's own.
    """
    found = compare_bytecode(python, case.files.sources, progress)
    vouched = {
        os.path.realpath(f"{case.framework.location}/{state.name}")
        for state in case.files.files
        if state.name.endswith(".pyc") and state.measured == state.recorded
    }
    differing = tuple(one for one in found.differing if os.path.realpath(one.file) not in vouched)
    found = found.model_copy(update={"differing": differing})
    return replace(case, files=replace(case.files, bytecode=found))
