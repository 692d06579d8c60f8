"""Tells what an environment holds.

Called as ``python -I probe_environment.py '{"distributions": [...], "module": "..."}'``, or given to
``python -I -`` on standard input behind a line that sets ``sys.argv``.

Runs inside the judged interpreter or image: standard library only, Python 3.9 and up, imports none of the
environment's packages. Prints one line: a mark, then JSON.
"""

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import site
import stat
import sys
import urllib.parse
from pathlib import Path

MARK = "plumbline-probe "
SOURCES = (".py", ".so", ".pyd")
IMPORTABLE = (*SOURCES, ".pyc")
SAMPLE_BYTES = 8192
MAX_FILES = 200000
ALGORITHMS = ("sha256", "sha384", "sha512")
UNHASHED = (".dist-info/RECORD", ".dist-info/RECORD.jws", ".dist-info/RECORD.p7s", ".pyc")
"""What RECORD may name without a digest: itself, its signatures (wheel specification), byte code."""
CUSTOMIZE = ("sitecustomize", "usercustomize")
EASY_INSTALL = (
    "import sys; sys.__plen = len(sys.path)",
    (
        "import sys; new=sys.path[sys.__plen:]; del sys.path[sys.__plen:]; p=getattr(sys,'__egginsert',0); "
        "sys.path[p:p]=new; sys.__egginsert = p+len(new)"
    ),
)
"""The two lines that setuptools writes around the paths of easy-install.pth; they only reorder sys.path."""
VIRTUALENV = ("_virtualenv.pth", "import _virtualenv")
"""What virtualenv and uv write into each environment without a RECORD; it patches distutils."""
GENERATED = ("entry_point", "entry_point_exe", "pyc_file")
"""How the types of paths end that a conda installer makes itself, and may record without a digest."""
DPKG = "/var/lib/dpkg/info"


def main() -> None:
    """Answer the one request."""
    request = json.loads(sys.argv[1])
    first, copies = first_on_path(), versions_in_folders()
    record = {
        "format": 1,
        "python": {"executable": sys.executable, "version": platform.python_version(), "prefix": sys.prefix},
        "markers": markers(),
        "distributions": [describe(found, copies, first) for _, found in sorted(first.items())],
        "framework": [
            framework_files(first[canonical(name)], first)
            for name in request["distributions"]
            if canonical(name) in first
        ],
        "module": module(request["module"]),
        "startup": startup_hooks(first),
    }
    print(MARK + json.dumps(record, sort_keys=True))


def canonical(name: str) -> str:
    """The normalized name of a distribution (packaging specification)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def first_on_path() -> "dict[str, importlib.metadata.Distribution]":
    """Every distribution by name; of two with one name the first on ``sys.path`` is the one that is used."""
    found: "dict[str, importlib.metadata.Distribution]" = {}
    for distribution in importlib.metadata.distributions():
        name = name_of(distribution)
        if name:
            found.setdefault(name, distribution)
    return found


def name_of(distribution: "importlib.metadata.Distribution") -> "str | None":
    """The canonical name; None for a broken installation without metadata, and for what pip moved away."""
    name = (distribution.metadata or {}).get("Name")
    moved = os.path.basename(str(getattr(distribution, "_path", ""))).startswith("~")  # noqa: PTH119 - no Path
    return canonical(name) if name and not moved else None


def versions_in_folders() -> "dict[str, dict[str, list[str]]]":
    """By name and folder of ``sys.path``: the versions of every distribution that says that name there."""
    found: "dict[str, dict[str, list[str]]]" = {}
    for folder in dict.fromkeys(os.path.realpath(entry) for entry in sys.path if os.path.isdir(entry)):  # noqa: PTH112 - text
        context = importlib.metadata.DistributionFinder.Context(path=[folder])
        for distribution in importlib.metadata.MetadataPathFinder.find_distributions(context):
            name = name_of(distribution)
            if name:
                version = distribution.metadata["Version"] or ""
                found.setdefault(name, {}).setdefault(folder, []).append(version)
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


def describe(
    distribution: "importlib.metadata.Distribution",
    copies: "dict[str, dict[str, list[str]]]",
    every: "dict[str, importlib.metadata.Distribution]",
) -> "dict[str, object]":
    """Name, version, requirements and origin of a distribution, its other copies and its missing modules."""
    folders = copies.get(canonical(distribution.metadata["Name"]), {})
    here = folders.get(os.path.realpath(located(distribution, "")), [])
    missing, shadowed = modules(distribution, every)
    return {
        "name": distribution.metadata["Name"],
        "version": distribution.metadata["Version"] or "",
        "requires": distribution.requires or [],
        "requires_python": distribution.metadata["Requires-Python"],
        "location": located(distribution, ""),
        "direct_url": direct_url(distribution),
        "versions_here": sorted(here),
        "folders": len(folders),
        "top_level": top_level(distribution),
        "missing": missing,
        "shadowed": shadowed,
    }


def top_level(distribution: "importlib.metadata.Distribution") -> "list[str]":
    """The import names of setuptools' ``top_level.txt``, where there is one."""
    names = (distribution.read_text("top_level.txt") or "").split()
    return [name for name in names if name.isidentifier()]


def modules(
    distribution: "importlib.metadata.Distribution", every: "dict[str, importlib.metadata.Distribution]"
) -> "tuple[list[str], list[str]]":
    """Files of the top-level modules that RECORD names and that are gone; origins that hide such a module."""
    names = [name for name, _, _ in recorded(distribution) if name.endswith(SOURCES)]
    files: "dict[str, list[str]]" = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 1 or (len(parts) == 2 and parts[1].split(".")[0] == "__init__"):
            files.setdefault(parts[0].split(".")[0], []).append(name)
    files = {module: found for module, found in files.items() if module.isidentifier()}
    missing = [
        found[0]
        for found in files.values()
        if not any(os.path.isfile(located(distribution, name)) for name in found)  # noqa: PTH113 - text
    ]
    if names and not any(os.path.isfile(located(distribution, name)) for name in names):  # noqa: PTH113 - text
        missing = missing or names[:1]
    declared = top_level(distribution)
    if not names and declared and not any(origin_of(name) for name in declared):
        missing = declared
    shadows = [
        origin
        for module, found in files.items()
        if found[0] not in missing and (origin := hidden_by(module, distribution, found)) is not None
    ]
    return missing, [origin for origin in shadows if not owned(origin, every)]


def hidden_by(
    module: str, distribution: "importlib.metadata.Distribution", files: "list[str]"
) -> "str | None":
    """Where a module would be imported from when that is another file than the recorded ones."""
    origin = origin_of(module)
    if origin is None or not os.path.isabs(origin):  # noqa: PTH117 - "built-in" and "frozen" are no paths
        return None
    standard = os.path.dirname(os.path.realpath(os.__file__))  # noqa: PTH120 - text
    real = os.path.realpath(origin)
    if real.startswith(standard + os.sep) and not re.search(r"[/\\](site|dist)-packages[/\\]", real):
        return None  # the standard library comes before every package
    return None if real in {os.path.realpath(located(distribution, name)) for name in files} else origin


def owned(origin: str, every: "dict[str, importlib.metadata.Distribution]") -> bool:
    """Whether any distribution recorded a file, or has its folder, being editable or without a RECORD."""
    real = os.path.realpath(origin)
    for other in every.values():
        entries = recorded(other)
        if any(os.path.realpath(located(other, name)) == real for name, _, _ in entries):
            return True
        if not entries and os.path.realpath(located(other, "")) == os.path.dirname(os.path.dirname(real)):  # noqa: PTH120 - text
            return True
        url = direct_url(other)
        info = url.get("dir_info") if isinstance(url, dict) else None
        if isinstance(info, dict) and info.get("editable"):
            path = urllib.parse.unquote(urllib.parse.urlsplit(str(url.get("url"))).path)
            if path and real.startswith(os.path.realpath(path) + os.sep):
                return True
    return False


def origin_of(name: str) -> "str | None":
    """Where a module would be imported from (a folder for a namespace package); nothing is run."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), None)


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
    entries, reference = conda_recorded(distribution), "conda package"
    if not entries:
        entries, reference = recorded(distribution), "RECORD"
    if not entries:
        return {"name": name, "has_record": False}
    files = [measured(entry, located(distribution, entry[0])) for entry in entries if entry[2]]
    known = {os.path.normpath(located(distribution, entry[0])) for entry in entries}
    return {
        "name": name,
        "has_record": True,
        "reference": reference,
        "files": sampled(files, distribution),
        "unrecorded": unrecorded(distribution, entries, known, every),
        "unhashed": [entry[0] for entry in entries if not entry[2] and not entry[0].endswith(UNHASHED)],
    }


def conda_recorded(distribution: "importlib.metadata.Distribution") -> "list[tuple[str, str, str]]":
    """The files of a conda package with the digests that its installer recorded; empty when it is none.

    conda packages are made from installed files: INSTALLER and scripts are rewritten after RECORD was, other
    files of the dist-info are dropped, and some have no RECORD at all. What is held against the files is
    ``paths_data`` of ``conda-meta``, whose digests are of the files as they were linked. A script that the
    installer generates for an entry point has a digest only where the installer says so.
    """
    if (distribution.read_text("INSTALLER") or "").strip() != "conda":
        return []
    folder = os.path.realpath(located(distribution, ""))
    metadata = os.path.realpath(str(getattr(distribution, "_path", "")))
    entries = []
    for prefix, package in conda_packages():
        paths = [
            (os.path.join(os.path.realpath(prefix), str(path["_path"])), path)  # noqa: PTH118 - text
            for path in package.get("paths_data", {}).get("paths", ())
        ]
        if not any(place.startswith(metadata + os.sep) for place, _ in paths):
            continue
        for place, path in paths:
            value = str(path.get("sha256_in_prefix") or path.get("sha256") or "")
            if value or not str(path.get("path_type", "")).endswith(GENERATED):
                digest = base64.urlsafe_b64encode(bytes.fromhex(value)).rstrip(b"=").decode()
                entries.append((os.path.relpath(place, folder), "sha256", digest))
    return entries if any(digest for _, _, digest in entries) else []


def conda_packages() -> "list[tuple[str, dict[str, object]]]":
    """Each conda package that is installed here: its prefix and its record."""
    return [
        (prefix, json.loads(path.read_text("utf-8")))
        for prefix in sorted({sys.prefix, sys.base_prefix})
        for path in sorted(Path(prefix, "conda-meta").glob("*.json"))
    ]


def recorded(distribution: "importlib.metadata.Distribution") -> "list[tuple[str, str, str]]":
    """Name, algorithm and digest of each line of RECORD, '' where it has none.

    Read here: ``Distribution.files`` of Python 3.12 and newer leaves out what is missing.
    """
    text = distribution.read_text("RECORD") or ""
    rows = [row for row in csv.reader(text.splitlines()) if row and row[0]]
    if len(rows) > MAX_FILES:
        raise ValueError("RECORD lists %d files, the limit is %d" % (len(rows), MAX_FILES))
    entries = []
    for row in rows:
        algorithm, _, digest = (row[1] if len(row) > 1 else "").partition("=")
        entries.append((row[0], algorithm, digest))
    return entries


def located(distribution: "importlib.metadata.Distribution", name: str) -> str:
    """Where a recorded file lies; ``pip install --target`` moves scripts below the folder, and RECORD not."""
    path = str(distribution.locate_file(name))
    if name.startswith("../") and not os.path.lexists(path):
        moved = str(distribution.locate_file("bin/" + name.rpartition("/")[2]))
        return moved if os.path.isfile(moved) else path  # noqa: PTH113 - text
    return path


def measured(entry: "tuple[str, str, str]", path: str) -> "dict[str, object]":
    """One file; ``measured`` is null when it is missing or no plain file."""
    name, algorithm, value = entry
    digest = digest_of(path, algorithm) if algorithm in ALGORITHMS else None
    return {"name": name, "algorithm": algorithm, "recorded": value, "measured": digest}


def digest_of(path: str, algorithm: str) -> "str | None":
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
    entries: "list[tuple[str, str, str]]",
    known: "set[str]",
    every: "dict[str, importlib.metadata.Distribution]",
) -> "list[str]":
    """Importable files in the distribution's package folders that no distribution recorded."""
    root = str(distribution.locate_file(""))
    parts = [Path(name).parts for name, _, _ in entries]
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
            os.path.normpath(located(other, entry[0]))
            for other in every.values()
            for entry in recorded(other)
        }
        found = [path for path in found if path not in others]
    return sorted(os.path.relpath(path, root) for path in found)


def startup_hooks(every: "dict[str, importlib.metadata.Distribution]") -> "list[dict[str, str]]":
    """Files that run when the interpreter starts and that nothing installed vouches for, each with why."""
    vouched = {
        os.path.realpath(located(distribution, name)): (algorithm, value)
        for distribution in every.values()
        for name, algorithm, value in recorded(distribution)
        if name.endswith(".pth") or name in tuple(module + ".py" for module in CUSTOMIZE)
    }
    found = []
    for path in [*path_files(), *(origin for name in CUSTOMIZE if (origin := origin_of(name)))]:
        algorithm, value = vouched.get(os.path.realpath(path), ("", ""))
        if not value:
            if not of_the_system(path):
                found.append({"file": path, "why": "no distribution recorded it"})
        elif digest_of(path, algorithm) != value:
            found.append({"file": path, "why": "it differs from its RECORD"})
    return found


def path_files() -> "list[str]":
    """The ``.pth`` files that run code, beside those that virtual environments are made with."""
    folders = [*site.getsitepackages(), *sys.path]
    named = [folder for folder in folders if folder.endswith(("site-packages", "dist-packages"))]
    found = []
    for folder in dict.fromkeys(os.path.realpath(folder) for folder in named if os.path.isdir(folder)):  # noqa: PTH112 - text
        for path in sorted(Path(folder).glob("*.pth")):
            lines = code_lines(path)
            if lines and (path.name, "\n".join(lines)) != VIRTUALENV:
                found.append(str(path))
    return found


def code_lines(path: Path) -> "list[str]":
    """The lines of a ``.pth`` file that Python runs; the others only name folders."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        text = file.read(1 << 20).decode("utf-8", "replace")
    lines = [line.rstrip() for line in text.splitlines() if line.startswith(("import ", "import\t"))]
    return [line for line in lines if line not in EASY_INSTALL]


def of_the_system(path: str) -> bool:
    """Whether the operating system's package (dpkg) or a conda package has that file."""
    named = {path, os.path.realpath(path)}
    for listing in Path(DPKG).glob("*.list"):
        if named & set(listing.read_text("utf-8", "replace").splitlines()):
            return True
    return any(
        named & {os.path.join(prefix, str(name)) for name in package.get("files", ())}  # noqa: PTH118 - text
        for prefix, package in conda_packages()
    )


def module(name: str) -> "dict[str, object]":
    """Where the framework's code is imported from, and the version that its text states; nothing is run."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return {"name": name, "origin": None, "version": None}
    folders = [] if spec.origin else [str(folder) for folder in spec.submodule_search_locations or ()]
    return {
        "name": name,
        "origin": spec.origin,
        "folders": folders,
        "version": stated_version(spec.origin),
    }


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
