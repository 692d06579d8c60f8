"""Reads a requirements list as pip writes it: exact pins, their hashes, extras and markers; nothing else.

A list that decides an environment has to decide it alone. So it names no index, no other file and no local
path, and by default each line carries the hashes of its wheels: what is installed is then what was listed.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from plumbline_mcp.errors import UsageError

_MAX_BYTES = 4 * 2**20
_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = re.compile(r"\s--hash[= ](?P<algorithm>[a-z0-9]+):(?P<digest>[0-9a-f]+)(?=\s|$)")
_ALGORITHMS = {"sha256": 64, "sha384": 96, "sha512": 128}


@dataclass(frozen=True)
class RequirementsList:
    """The requirements of a file in its order, and the hashes of each."""

    requirements: tuple[str, ...]
    hashes: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_requirements(path: Path, *, hashed: bool = True) -> RequirementsList:
    """Read the file. Raises `UsageError` with file, line and value for what it does not take.

    ``hashed`` wants a hash on every line, as pip's ``--require-hashes`` does; without it hashes that are
    there are still used, when every line has one.
    """
    found: dict[str, tuple[str, ...]] = {}
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        requirement, hashes = _parsed(line, where)
        if hashed and not hashes:
            raise UsageError(
                f"{where}: {requirement} has no --hash",
                "write the list with hashes (pip-compile or uv pip compile, --generate-hashes), or say "
                "hashes = false in the target",
            )
        found[requirement] = hashes
    if not found:
        raise UsageError(f"{path} lists no requirement", "list the framework and what it needs, pinned")
    complete = all(found.values())
    return RequirementsList(tuple(found), found if complete else {})


def _lines(path: Path) -> list[tuple[int, str]]:
    """Each logical line with the number of its first: comments gone, continuations joined."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise UsageError(f"{path} is larger than {_MAX_BYTES} bytes", "name a requirements list")
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the requirements {path} cannot be read: {error}", "name a text file") from error
    lines: list[tuple[int, str]] = []
    joined, first = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        first = first if joined else number
        joined += _COMMENT.sub("", line)
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            lines.append((first, joined.strip()))
        joined = ""
    return [*lines, (first, joined.strip())] if joined.strip() else lines


def _parsed(line: str, where: str) -> tuple[str, tuple[str, ...]]:
    if line.startswith("-"):
        raise UsageError(
            f"{where}: {line[:80]!r} is an option",
            "a list holds requirements alone: name an index with PIP_INDEX_URL, and copy other lists in",
        )
    hashes = tuple(sorted(f"{hit['algorithm']}:{hit['digest']}" for hit in _HASH.finditer(line)))
    for text in hashes:
        algorithm, digest = text.split(":")
        if _ALGORITHMS.get(algorithm) != len(digest):
            raise UsageError(f"{where}: the hash {text[:40]!r} is none", "give sha256, sha384 or sha512")
    text = _HASH.sub("", line).strip()
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{where}: {text[:80]!r} is no requirement: {first}", "name==version") from error
    pins = [each for each in requirement.specifier if each.operator in ("==", "===")]
    if not requirement.url and (not pins or any(each.version.endswith(".*") for each in pins)):
        raise UsageError(f"{where}: {text!r} names no version", "pin it: name==version")
    return str(requirement), hashes
