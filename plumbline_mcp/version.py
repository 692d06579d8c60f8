"""The system version: release number, one digest over the shipped tree, the reference libraries.

Two installs that say the same version judge alike. A tree that equals no frozen digest list says ``+dev``.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import checks
from checks.verdict import Frozen

ROOT = Path(checks.__file__).parent.parent
SHIPPED = ("plumbline_mcp", "checks", "approvals", "templates")
FROZEN = ROOT / "plumbline_mcp" / "frozen.json"
DISTRIBUTION = "plumbline-mcp"
OUTSIDE = "proposed_"
"""Begins the name of each check that is no part of a version, in its verdicts."""

_REFERENCE_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "jinja2", "numpy")
_MINOR_ONLY = frozenset({"torch", "numpy"})
_SKIPPED_SUFFIXES = frozenset({".pyc"})


class SystemVersion(Frozen):
    """What judged: shown as ``0.1.0-1a2b3c4d5e6f`` (``+dev`` when not frozen)."""

    release: str
    digest: str
    frozen: bool
    pins: dict[str, str]
    files: dict[str, str]

    def __str__(self) -> str:
        return f"{self.release}-{self.digest[:12]}" + ("" if self.frozen else "+dev")


@cache
def system_version() -> SystemVersion:
    """The version of the running program, computed once per process."""
    release, pins, files = metadata.version(DISTRIBUTION), _pins(), _files()
    digest = digest_of(release, pins, files)
    return SystemVersion(
        release=release, digest=digest, frozen=_frozen_digest() == digest, pins=pins, files=files
    )


def digest_of(release: str, pins: Mapping[str, str], files: Mapping[str, str]) -> str:
    """SHA-256 (hex) over release number, reference libraries and every shipped file."""
    body = json.dumps({"release": release, "pins": dict(pins), "files": dict(files)}, sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()


def freeze(approvals: Sequence[Mapping[str, str]], rules: Mapping[str, str]) -> Path:
    """Write the digest list of this tree; from then on it is a frozen version until a file changes.

    ``approvals`` are the signed statements about it, ``rules`` its bounds: both are read by people and by
    `plumbline_mcp.scan.versions` alone. Raises `OSError`.
    """
    plain = system_version().model_copy(update={"frozen": True}).model_dump(mode="json")
    content = {**plain, "rules": dict(rules), "approvals": [dict(one) for one in approvals]}
    temporary = FROZEN.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(FROZEN)
    system_version.cache_clear()
    return FROZEN


def frozen_approvals() -> list[dict[str, str]]:
    """The signed statements in the digest list that lies beside the program; empty without one."""
    try:
        found = json.loads(FROZEN.read_text())["approvals"]
        return [{str(name): str(value) for name, value in one.items()} for one in found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _pins() -> dict[str, str]:
    pins = {}
    for name in _REFERENCE_LIBRARIES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "missing"
        pins[name] = ".".join(version.split("+")[0].split(".")[:2]) if name in _MINOR_ONLY else version
    return pins


def _files() -> dict[str, str]:
    paths = (path for folder in SHIPPED for path in (ROOT / folder).rglob("*"))
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.is_file() and path.suffix not in _SKIPPED_SUFFIXES and path.with_suffix(".json") != FROZEN
    }


def _frozen_digest() -> str | None:
    try:
        return str(json.loads(FROZEN.read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
