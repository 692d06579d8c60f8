"""The question of the check *image*, answered anew from the interpreter's own answer: declared and installed.

The byte code that an interpreter would run in place of a source is not in its answer, nor is a checkout: an
environment in which nothing else is wrong is therefore ``inconclusive`` here, never ``pass``.
"""

import base64
import hashlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.answer import Answer, Flaw, unknown
from plumbline_mcp.findings.recompute.reading import Cannot, place_in, read_json
from plumbline_mcp.findings.recompute.recipe import pack_file, pack_folder

PARTS = ("requirements", "commit", "files")
Table = dict[str, Any]


def recompute(folder: Path, question: Question) -> Submission:
    """Answer the question from ``record-1/probe.json``. Raises `Cannot`."""
    if not question.records:
        raise Cannot("the question names no record")
    name = question.records[0]
    path = place_in(folder, name if name.endswith(".json") else f"{name}/probe.json")
    probe = read_json(path)
    if not isinstance(probe, dict) or probe.get("format") != 1:
        raise Cannot("the record is no answer of a probe that is read here")
    about = pack_file(pack_folder(folder, question, None), "pack.toml").get("framework")
    if not isinstance(about, dict) or not about.get("distributions"):
        raise Cannot("the question names no connection pack that says how the framework is found")
    installed: dict[str, Table] = {
        canonicalize_name(str(each.get("name"))): each for each in _tables(probe, "distributions")
    }
    framework = installed.get(canonicalize_name(str(about["distributions"][0])))
    if framework is None:
        raise Cannot(f"{about['distributions'][0]} is not installed in that environment")
    answer = Answer(PARTS)
    declared = list(
        _declared(framework, [str(e) for e in about.get("extras", [])], installed, _markers(probe))
    )
    answer.add(_requirements(declared, installed))
    answer.add(_python(probe, framework))
    answer.add(_lock(folder, question, installed))
    answer.add(_whole(declared, framework, installed, about))
    answer.add(_commit(question, probe, framework))
    answer.add(_files(probe, framework))
    direct = {str(r) for r, by, _ in declared if r is not None and by == str(framework.get("name"))}
    answer.measured("requirements", "declared by the framework", len(direct))
    others = {(str(r), by) for r, by, _ in declared if r is not None} - {
        (text, str(framework.get("name"))) for text in direct
    }
    answer.measured("requirements", "declared by what it requires", len(others))
    why = "byte code that would run in place of its source is not in the interpreter's answer"
    answer.add([unknown("files", "bytecode-unread", why)])
    return answer.submission("")


def _tables(place: Table, name: str) -> list[Table]:
    found = place.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _texts(place: Table, name: str) -> list[str]:
    found = place.get(name)
    return [str(each) for each in found] if isinstance(found, list) else []


def _markers(probe: Table) -> dict[str, str]:
    found = probe.get("markers")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


Declared = tuple[Requirement | None, str, str]
"""A requirement (None: not readable), who declares it, its text."""


def _declared(
    framework: Table, extras: list[str], installed: dict[str, Table], markers: dict[str, str]
) -> Iterator[Declared]:
    """The closure of what applies here, breadth first, each distribution and extra once."""
    queue = deque((canonicalize_name(str(framework.get("name"))), extra) for extra in ["", *extras])
    seen: set[tuple[str, str]] = set()
    given: set[tuple[str, str]] = set()
    while queue:
        name, extra = queue.popleft()
        if (name, extra) in seen or name not in installed:
            continue
        seen.add((name, extra))
        by = str(installed[name].get("name"))
        for text in _texts(installed[name], "requires"):
            requirement, applies = _read(text, extra, markers)
            if requirement is None and (text, by) not in given:
                yield None, by, text
            if requirement is not None and applies:
                if (text, by) not in given:
                    yield requirement, by, text
                target = canonicalize_name(requirement.name)
                queue.extend((target, each) for each in ["", *requirement.extras])
            given |= {(text, by)} if applies or requirement is None else set()


def _read(text: str, extra: str, markers: dict[str, str]) -> tuple[Requirement | None, bool]:
    try:
        requirement = Requirement(text)
        marker: Marker | None = requirement.marker
        return requirement, marker is None or marker.evaluate({**markers, "extra": extra})
    except (InvalidRequirement, InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return None, False


def _satisfies(specifier: SpecifierSet, version: str) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not str(specifier)


def _requirements(declared: list[Declared], installed: dict[str, Table]) -> Iterator[Flaw]:
    for requirement, by, text in declared:
        if requirement is None:
            yield unknown(
                "requirements", "requirement-unreadable", f"{by} declares {text[:100]!r}", package=by
            )
            continue
        where = {"package": requirement.name}
        found = installed.get(canonicalize_name(requirement.name))
        if found is None:
            yield Flaw("requirements", "requirement-missing", where, "not installed", text[:200])
        elif requirement.url is not None:
            origin = (found.get("direct_url") or {}).get("url")
            if origin is None or str(origin) not in str(requirement.url):
                why = f"{requirement.name} is required from an address"
                yield unknown("requirements", "requirement-unsatisfied", why, **where)
        elif not _satisfies(requirement.specifier, str(found.get("version"))):
            version = str(found.get("version"))[:100]
            yield Flaw("requirements", "requirement-unsatisfied", where, version, str(requirement.specifier))


def _python(probe: Table, framework: Table) -> Iterator[Flaw]:
    wanted = framework.get("requires_python")
    version = str((probe.get("python") or {}).get("version", ""))
    try:
        if wanted and not _satisfies(SpecifierSet(str(wanted)), version):
            yield Flaw("requirements", "requirement-unsatisfied", {"package": "python"}, version, str(wanted))
    except InvalidSpecifier:
        yield unknown("requirements", "requirement-unreadable", f"Requires-Python: {str(wanted)[:100]}")


def _lock(folder: Path, question: Question, installed: dict[str, Table]) -> Iterator[Flaw]:
    """Pinned lines are held against what is installed; other lock files are not read here."""
    given = question.inputs.get("lock")
    if given is None:
        return
    if not isinstance(given, str) or not given.endswith(".txt"):
        yield unknown("requirements", "lock-unread", "only pinned requirement lines are read here")
        return
    for line in place_in(folder, given).read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.split(" #")[0].split(" --")[0].strip()
        if not text or text.startswith(("#", "-")):
            continue
        requirement, _ = _read(text, "", {})
        if requirement is None:
            yield unknown("requirements", "lock-unread", f"{text[:100]!r} is no requirement")
            continue
        found = installed.get(canonicalize_name(requirement.name))
        if found is None:
            yield Flaw(
                "requirements", "requirement-missing", {"package": canonicalize_name(requirement.name)}
            )
        elif not _satisfies(requirement.specifier, str(found.get("version"))):
            where = {"package": canonicalize_name(requirement.name)}
            yield Flaw(
                "requirements", "requirement-unsatisfied", where, str(found.get("version"))[:100], text
            )


def _whole(
    declared: list[Declared], framework: Table, installed: dict[str, Table], about: Table
) -> Iterator[Flaw]:
    """What is required is there once, with its modules, and is what would be imported."""
    names = {canonicalize_name(r.name) for r, _, _ in declared if r is not None}
    names |= {canonicalize_name(str(name)) for name in about["distributions"]}
    for name, found in installed.items():
        if name not in names:
            continue
        own = str(found.get("name"))
        if len(set(_texts(found, "versions_here"))) > 1:
            yield unknown("requirements", "installed-twice", f"{own} says two versions", package=own)
        if own == str(framework.get("name")):
            continue
        for file in _texts(found, "missing"):
            yield Flaw("requirements", "file-missing", {"package": own, "file": file})
        for file in _texts(found, "shadowed"):
            yield Flaw("requirements", "module-shadowed", {"package": own, "file": file})


def _commit(question: Question, probe: Table, framework: Table) -> Iterator[Flaw]:
    """The installed code is the version or the commit under test."""
    version, stated = str(framework.get("version")), (probe.get("module") or {}).get("version")
    if stated is not None and not _equal(str(stated), version):
        yield Flaw("commit", "version-differs", {}, str(stated)[:100], version[:100])
    asked = question.inputs.get("commit")
    if not isinstance(asked, str):
        return
    hexadecimal = 7 <= len(asked) <= 64 and set(asked.lower()) <= set("0123456789abcdef")
    if not hexadecimal:
        if not _equal(asked, version):
            yield Flaw("commit", "version-differs", {}, version[:100], asked[:100])
        return
    origin = framework.get("direct_url") or {}
    commit = str((origin.get("vcs_info") or {}).get("commit_id") or "").lower()
    if not commit:
        why = "the installed wheel names no commit, and a checkout is not read here"
        yield unknown("commit", "commit-unknown", why, package=str(framework.get("name")))
    elif not commit.startswith(asked.lower()):
        yield Flaw("commit", "commit-differs", {}, commit[:64], asked[:64])


def _equal(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _files(probe: Table, framework: Table) -> Iterator[Flaw]:
    """Every file of the framework is the recorded one, none was added, and it is what is imported."""
    names, editable = set[str](), (framework.get("direct_url") or {}).get("dir_info", {}) or {}
    if editable.get("editable"):
        yield unknown("files", "checkout-unread", "the framework is installed from a checkout")
        return
    for entry in _tables(probe, "framework"):
        own = str(entry.get("name"))
        if not entry.get("has_record"):
            yield unknown("files", "record-missing", f"{own} was installed without a RECORD", package=own)
        for state in _tables(entry, "files"):
            names.add(str(state.get("name")))
            yield from _file(state)
        for name in _texts(entry, "unrecorded"):
            yield Flaw("files", "file-unexpected", {"file": name})
        for name in _texts(entry, "unhashed"):
            yield unknown("files", "record-missing", f"{name} is recorded without a digest", file=name)
    for hook in _tables(probe, "startup"):
        file = str(hook.get("file"))
        yield unknown("files", "startup-hook", f"{file} runs at the interpreter's start", file=file)
    module, location = probe.get("module") or {}, str(framework.get("location", "")).rstrip("/")
    origin = module.get("origin")
    own_files = {f"{location}/{name}" for name in names}
    if names and origin not in own_files and not module.get("folders"):
        where = {"file": str(origin), "package": str(framework.get("name"))}
        yield Flaw("files", "module-shadowed", where, str(origin)[:300], location[:300])
    elif module.get("folders"):
        yield unknown("files", "namespace-unread", "a namespace package has several folders")


def _file(state: Table) -> Iterator[Flaw]:
    name, recorded, measured = str(state.get("name")), state.get("recorded"), state.get("measured")
    algorithm = str(state.get("algorithm"))
    if isinstance(state.get("content"), str) and algorithm in ("sha256", "sha384", "sha512"):
        raw = base64.b64decode(state["content"])
        digest = hashlib.new(algorithm, raw).digest()
        measured = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    if measured is None:
        known = algorithm in ("sha256", "sha384", "sha512", "git-blob")
        if known:
            yield Flaw("files", "file-missing", {"file": name})
        else:
            yield unknown("files", "record-missing", f"{name}: {algorithm[:40]} is not known", file=name)
    elif measured != recorded:
        yield Flaw("files", "file-edited", {"file": name}, str(measured)[:100], str(recorded)[:100])
