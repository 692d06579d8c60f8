"""What a framework declares: the requirements of its metadata, of a source checkout and of a lock file.

Read as data: nothing of the framework is run. Requirements that a ``setup.py`` computes are not known here;
the metadata of the installed framework holds what it computed.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from checks.errors import BadInput
from checks.records.probe import EnvironmentProbe

_MAX_FILE = 32 * 2**20
_MAX_INCLUDES = 20


@dataclass(frozen=True)
class Declared:
    """One requirement that applies here, and who declares it."""

    requirement: Requirement
    by: str
    direct: bool


@dataclass(frozen=True)
class Unreadable:
    """A declaration that does not follow the specification."""

    text: str
    by: str


@dataclass(frozen=True)
class Locked:
    """The versions that a lock file names for a distribution (several: one per platform fork).

    ``line``: a requirement line that pins no version, and is held against what is installed as it stands.
    """

    name: str
    versions: tuple[str, ...]
    required: bool
    line: Requirement | None = None


@dataclass(frozen=True)
class Source:
    """Requirements that a source checkout declares, with their extras expanded by `expand`."""

    where: str
    requires: tuple[str, ...]
    notes: tuple[str, ...] = ()


def expand(
    probe: EnvironmentProbe, framework: str, extras: tuple[str, ...], source: Source | None
) -> Iterator[Declared | Unreadable]:
    """Every requirement that applies: the framework's, then those of what it requires, and so on.

    Markers are evaluated with the values of the judged environment. The whole closure is declared, because
    an environment in which a dependency's own declaration does not hold is none that a resolver would make.
    """
    installed = {canonicalize_name(found.name): found for found in probe.distributions}
    pending = [(canonicalize_name(framework), extras, True)]
    seen: set[tuple[str, str]] = set()
    if source is not None:
        for item in _applicable(source.requires, source.where, ("", *extras), probe.markers, direct=True):
            yield item
            if isinstance(item, Declared):
                pending.append(
                    (canonicalize_name(item.requirement.name), tuple(item.requirement.extras), False)
                )
    while pending:
        name, wanted, direct = pending.pop(0)
        fresh = [extra for extra in ("", *wanted) if (name, extra) not in seen]
        seen |= {(name, extra) for extra in fresh}
        if name not in installed or not fresh:
            continue
        found = installed[name]
        for item in _applicable(found.requires, found.name, tuple(fresh), probe.markers, direct=direct):
            yield item
            if isinstance(item, Declared):
                requirement = item.requirement
                pending.append((canonicalize_name(requirement.name), tuple(requirement.extras), False))


def _applicable(
    texts: tuple[str, ...], by: str, extras: tuple[str, ...], markers: Mapping[str, str], *, direct: bool
) -> Iterator[Declared | Unreadable]:
    for text in texts:
        try:
            requirement = Requirement(text)
            applies = _applies(requirement.marker, extras, markers)
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            yield Unreadable(text[:200], by)
            continue
        if applies:
            yield Declared(requirement, by, direct)


def _applies(marker: Marker | None, extras: tuple[str, ...], markers: Mapping[str, str]) -> bool:
    return marker is None or any(marker.evaluate({**markers, "extra": extra}) for extra in extras)


def read_source(checkout: Path, extras: tuple[str, ...]) -> Source:
    """The declarations of a checkout: ``pyproject.toml``, and the requirement files it points to."""
    path = checkout / "pyproject.toml"
    if not path.is_file():
        return _from_requirement_file(checkout, "no pyproject.toml")
    content = _toml(path)
    project = content.get("project")
    if not isinstance(project, dict):
        return _from_requirement_file(checkout, "pyproject.toml has no [project]")
    requires = [str(text) for text in _list(project.get("dependencies"))]
    optional = project.get("optional-dependencies") or {}
    for extra in extras:
        requires += [str(text) for text in _list(optional.get(extra))]
    notes = []
    if "dependencies" in _list(project.get("dynamic")):
        files = _dynamic_files(content)
        for name in files:
            requires += _requirement_lines(checkout, name)
        if not files:
            notes.append("its dependencies are computed when it is built: the installed metadata is judged")
    return Source(str(path), tuple(requires), tuple(notes))


def _from_requirement_file(checkout: Path, why: str) -> Source:
    if not (checkout / "requirements.txt").is_file():
        note = f"{why} and no requirements.txt: the installed metadata is judged"
        return Source(str(checkout), (), (note,))
    return Source(str(checkout / "requirements.txt"), tuple(_requirement_lines(checkout, "requirements.txt")))


def _dynamic_files(content: Mapping[str, Any]) -> list[str]:
    try:
        entry = content["tool"]["setuptools"]["dynamic"]["dependencies"]["file"]
    except (KeyError, TypeError):
        return []
    return [entry] if isinstance(entry, str) else [str(name) for name in _list(entry)]


def _requirement_lines(root: Path, name: str, depth: int = 0) -> list[str]:
    """The requirements of a requirements file and of the files that it includes, inside ``root`` only."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()) or depth > _MAX_INCLUDES:
        raise BadInput(f"{root}: {name!r} leads out of the checkout or includes itself")
    found = []
    for raw in _text(path).replace("\\\n", " ").splitlines():
        line = raw.split(" #")[0].strip()
        if line.startswith(("-r ", "--requirement ")):
            included = Path(name).parent / line.split(maxsplit=1)[1]
            found += _requirement_lines(root, str(included), depth + 1)
        elif line and not line.startswith(("#", "-")):
            found.append(line.split(" --")[0].strip())
    return found


def read_lock(path: Path, markers: Mapping[str, str]) -> dict[str, Locked]:
    """The locked versions by canonical name: uv, poetry and pylock files, or pinned requirement lines.

    ``required`` says that the lock asks for the distribution in this environment; uv and poetry lock every
    platform and group together, so there only what is required otherwise has to be installed.
    """
    if path.suffix in (".toml", ".lock"):
        return _locked_tables(_toml(path), markers, path)
    found: dict[str, Locked] = {}
    for text in _requirement_lines(path.parent, path.name):
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise BadInput(f"{path}: {text[:100]!r} is no requirement") from error
        pins = [spec.version for spec in requirement.specifier if spec.operator in ("==", "===")]
        if requirement.marker is None or requirement.marker.evaluate(dict(markers)):
            name = canonicalize_name(requirement.name)
            found[name] = Locked(name, tuple(pins), True, None if pins else requirement)
    return _some(found, path)


def _locked_tables(content: Mapping[str, Any], markers: Mapping[str, str], path: Path) -> dict[str, Locked]:
    standard = "lock-version" in content  # pylock.toml (PEP 751)
    versions: dict[str, list[str]] = {}
    for entry in _list(content.get("packages" if standard else "package")):
        if not isinstance(entry, dict) or not isinstance(entry.get("version"), str):
            continue
        texts = (
            [entry["marker"]] if "marker" in entry and standard else _list(entry.get("resolution-markers"))
        )
        if texts and not any(_holds(str(text), markers) for text in texts):
            continue
        versions.setdefault(canonicalize_name(str(entry.get("name"))), []).append(entry["version"])
    return _some({name: Locked(name, tuple(found), standard) for name, found in versions.items()}, path)


def _holds(text: str, markers: Mapping[str, str]) -> bool:
    try:
        return Marker(text).evaluate(dict(markers))
    except InvalidMarker as error:
        raise BadInput(f"{text[:100]!r} is no environment marker") from error


def _some(found: dict[str, Locked], path: Path) -> dict[str, Locked]:
    if not any(locked.versions for locked in found.values()):
        raise BadInput(f"{path} locks no version", "name a uv.lock, poetry.lock, pylock.toml or pinned list")
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is no valid TOML: {error}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise BadInput(f"{path} is larger than {_MAX_FILE} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text in UTF-8") from error
