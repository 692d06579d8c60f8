"""Tells what an environment holds.

Called as ``python -I probe_environment.py '{"distributions": [...], "module": "..."}'``.

Runs inside the judged interpreter or image: standard library only, Python 3.9 and up, imports none of the
environment's packages. Prints one line: a mark, then JSON.
"""

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import stat
import sys
from pathlib import Path

MARK = "plumbline-probe "
IMPORTABLE = (".py", ".so", ".pyd", ".pyc")
SAMPLE_BYTES = 8192
MAX_FILES = 200000
ALGORITHMS = ("sha256", "sha384", "sha512")


def main() -> None:
    """Answer the one request."""
    request = json.loads(sys.argv[1])
    first = first_on_path()
    record = {
        "format": 1,
        "python": {"executable": sys.executable, "version": platform.python_version(), "prefix": sys.prefix},
        "markers": markers(),
        "distributions": [describe(found) for _, found in sorted(first.items())],
        "framework": [
            framework_files(first[canonical(name)], first)
            for name in request["distributions"]
            if canonical(name) in first
        ],
        "module": module(request["module"]),
    }
    print(MARK + json.dumps(record, sort_keys=True))


def canonical(name: str) -> str:
    """The normalized name of a distribution (packaging specification)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def first_on_path() -> "dict[str, importlib.metadata.Distribution]":
    """Every distribution by name; of two with one name the first on ``sys.path`` is the one that is used."""
    found: "dict[str, importlib.metadata.Distribution]" = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata or {}).get("Name")  # a broken installation may have no metadata
        if name:
            found.setdefault(canonical(name), distribution)
    return found


def markers() -> "dict[str, str]":
    """The values of environment markers (packaging specification), computed without the packaging library."""
    version = sys.implementation.version
    full = "%d.%d.%d" % (version.major, version.minor, version.micro)
    if version.releaselevel != "final":
        full += version.releaselevel[0] + str(version.serial)
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": full,
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def describe(distribution: "importlib.metadata.Distribution") -> "dict[str, object]":
    """Name, version, requirements and origin of a distribution."""
    return {
        "name": distribution.metadata["Name"],
        "version": distribution.metadata["Version"] or "",
        "requires": distribution.requires or [],
        "requires_python": distribution.metadata["Requires-Python"],
        "location": str(distribution.locate_file("")),
        "direct_url": direct_url(distribution),
    }


def direct_url(distribution: "importlib.metadata.Distribution") -> "object":
    """Where it was installed from, when that was no index (PEP 610)."""
    text = distribution.read_text("direct_url.json")
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def framework_files(
    distribution: "importlib.metadata.Distribution", every: "dict[str, importlib.metadata.Distribution]"
) -> "dict[str, object]":
    """Each recorded file with the digest recorded and the digest measured, and files that nobody recorded."""
    name = canonical(distribution.metadata["Name"])
    text = distribution.read_text("RECORD")
    if not text:
        return {"name": name, "has_record": False, "files": [], "unrecorded": []}
    entries = distribution.files or []
    if len(entries) > MAX_FILES:
        raise ValueError("RECORD lists %d files, the limit is %d" % (len(entries), MAX_FILES))
    files = [measured(str(entry), Path(str(entry.locate())), entry.hash) for entry in entries if entry.hash]
    known = {os.path.normpath(str(entry.locate())) for entry in entries}
    return {
        "name": name,
        "has_record": True,
        "files": sampled(files, distribution),
        "unrecorded": unrecorded(distribution, known, every),
    }


def measured(name: str, path: Path, recorded: "importlib.metadata.FileHash") -> "dict[str, object]":
    """One file; ``measured`` is null when it is missing or no plain file."""
    entry = {"name": name, "algorithm": recorded.mode, "recorded": recorded.value, "measured": None}
    if recorded.mode in ALGORITHMS:
        entry["measured"] = digest_of(path, recorded.mode)
    return entry


def digest_of(path: Path, algorithm: str) -> "str | None":
    """Digest in RECORD's spelling: urlsafe base64 without padding."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        digest = hashlib.new(algorithm)
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def sampled(files: "list[dict[str, object]]", distribution: object) -> "list[dict[str, object]]":
    """The files; the smallest intact code file carries its bytes, so that a check can try a changed byte."""
    best = None
    for entry in files:
        if entry["measured"] == entry["recorded"] and str(entry["name"]).endswith(".py"):
            path = Path(str(distribution.locate_file(str(entry["name"]))))
            size = path.stat().st_size
            if 0 < size <= SAMPLE_BYTES and (best is None or size < best[0]):
                best = (size, entry, path)
    if best is not None:
        best[1]["content"] = base64.b64encode(best[2].read_bytes()).decode()
    return files


def unrecorded(
    distribution: "importlib.metadata.Distribution",
    known: "set[str]",
    every: "dict[str, importlib.metadata.Distribution]",
) -> "list[str]":
    """Importable files in the distribution's package folders that no distribution recorded."""
    root = str(distribution.locate_file(""))
    parts = [Path(str(entry)).parts for entry in distribution.files or []]
    tops = {names[0] for names in parts if len(names) > 1}
    found = []
    for top in sorted(tops):
        if top.endswith((".dist-info", ".data")) or top in ("..", "__pycache__"):
            continue
        for place, folders, names in os.walk(os.path.join(root, top)):  # noqa: PTH118 - fast for many files
            folders[:] = [name for name in folders if name != "__pycache__"]
            paths = (os.path.normpath(os.path.join(place, name)) for name in names)  # noqa: PTH118 - as above
            found += [path for path in paths if path.endswith(IMPORTABLE) and path not in known]
    if found:
        others = {
            os.path.normpath(str(entry.locate())) for other in every.values() for entry in other.files or []
        }
        found = [path for path in found if path not in others]
    return sorted(os.path.relpath(path, root) for path in found)


def module(name: str) -> "dict[str, object]":
    """Where the framework's code is imported from, and the version that its text states; nothing is run."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return {"name": name, "origin": None, "version": None}
    return {"name": name, "origin": spec.origin, "version": stated_version(spec.origin)}


def stated_version(origin: "str | None") -> "str | None":
    """The literal ``__version__ = "..."`` of a module's text."""
    if not origin or not origin.endswith(".py"):
        return None
    with Path(origin).open("rb") as file:
        text = file.read(1 << 20).decode("utf-8", "replace")
    match = re.search(r"^__version__\s*(?::\s*str\s*)?=\s*['\"]([^'\"\n]{1,100})['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


if __name__ == "__main__":
    main()
