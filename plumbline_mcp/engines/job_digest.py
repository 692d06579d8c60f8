"""What a job runs, by content: what a reviewer signs, and what is held against it before the job starts.

Everything that decides what happens is in it: the job's text without the run's id and folder, the connection
pack and every hook, the interpreter, the inputs and the settings. Two equal launches have one digest; any
altered argument, file or setting has another. The system version is not in it: what of it runs inside a job
are hooks, and they are.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import Field, JsonValue

from approvals.canonical import digest
from checks.records.runs import sha256_file
from checks.verdict import Frozen
from plumbline_mcp.engines import images
from plumbline_mcp.engines.contents import Contents
from plumbline_mcp.engines.environments import is_environment
from plumbline_mcp.engines.launching import Prepared, hook_files, render
from plumbline_mcp.errors import UsageError

PLACE = Path("/RUN")
"""Stands in a job's text for the run's id and folder."""
TEXT = "job text"
PACK = "connection pack"
HOOKS = "hook files"
BINARY = "interpreter"
LIBRARY = "standard library"
SITE = "installed packages"
IMAGE = "container image"
ENVIRONMENT = "environment"

T = TypeVar("T")

_MOST_NAMING = 2**20
"""Bytes that are read of a file that names a folder."""
_SITES = ("site-packages", "dist-packages")
_NOT_CODE = ("__pycache__", ".git")


class JobContent(Frozen):
    """One job by content. Names in ``digests``: those above, and each input's own name."""

    procedure: str
    framework: str
    binding: str
    interpreter: str = Field(description="path of the interpreter")
    inputs: dict[str, str] = Field(description="path of each input")
    settings: dict[str, JsonValue]
    target: dict[str, str]
    plants: tuple[str, ...]
    ranks: int
    time_limit_s: float
    disk_bytes: int
    log_bytes: int
    confinement: str = Field(description="what has to hold it, as it was asked for")
    digests: dict[str, str] = Field(description="SHA-256 of what is run and read, by name")

    @property
    def digest(self) -> str:
        """The digest of the job."""
        return digest(self.model_dump(mode="json"))

    @property
    def of_inputs(self) -> dict[str, str]:
        """Digest of each input."""
        return {name: self.digests[name] for name in self.inputs}

    def differences(self, other: "JobContent") -> list[str]:
        """What another job has differently, each as one phrase: name, what ours is and what its is."""
        return [f"{name} {_short(mine)}, there {_short(its)}" for name, mine, its in self.changes(other)]

    def changes(self, other: "JobContent") -> list[tuple[str, object, object]]:
        """What another job has differently: name, what ours is and what its is (None: it has no such)."""
        apart = {"digests", "settings"}
        fields = self.model_dump(mode="json", exclude=apart), other.model_dump(mode="json", exclude=apart)
        return [
            *((name.replace("_", " "), mine, its) for name, mine, its in _different(*fields)),
            *_different(self.settings, other.settings),
            *_different(self.digests, other.digests),
        ]


def job_content(prepared: Prepared, contents: Contents | None = None) -> JobContent:
    """The content of a prepared launch. Raises `UsageError` for a file that cannot be read."""
    job, contents = prepared.job, contents or Contents()
    digests = readable(lambda: _digests(prepared, contents))
    return JobContent(
        procedure=job.procedure,
        framework=job.framework,
        binding=job.binding,
        interpreter=job.interpreter,
        inputs=job.inputs,
        settings=job.settings,
        target=job.target,
        plants=job.plants,
        ranks=job.world_size,
        time_limit_s=job.time_limit_s,
        disk_bytes=job.disk_bytes,
        log_bytes=job.log_bytes,
        confinement=prepared.launch.confinement,
        digests=digests,
    )


def job_digest(prepared: Prepared, contents: Contents | None = None) -> str:
    """SHA-256 of what a prepared launch runs. Raises `UsageError` for a file that cannot be read."""
    return job_content(prepared, contents).digest


def job_text(prepared: Prepared) -> str:
    """The job's text with `PLACE` for the run's folder and its name for the run's id."""
    job = prepared.job.model_copy(update={"run_id": PLACE.name})
    return render(job, PLACE, prepared.script.name)


def interpreter_digests(python: Path, contents: Contents) -> dict[str, str]:
    """What an interpreter is: its program and what is installed for it; of an image, the line that starts it.

    An environment of ours is named by what it is built from: it may not be built yet; what is found in it is
    noted when a job starts (`plumbline_mcp.engines.admission`).

    Nothing is started: to ask an interpreter would run what is installed in it. An image is named by digest
    in that line. Byte code is left out, because every start may write it, and the history of an editable
    checkout. Raises `OSError`.
    """
    if images.runtime_of(python) is not None:
        return {IMAGE: contents.of(python)}
    if is_environment(python):
        return {ENVIRONMENT: environment_use(python)}
    library = {str(path): contents.of(path, but=(*_NOT_CODE, *_SITES)) for path in _libraries(python)}
    found = {BINARY: contents.of(python.resolve()), LIBRARY: digest(library)}
    return found | {SITE: installed(python, contents)}


def environment_use(python: Path) -> str:
    """The digest under which the building of an environment is signed, by its interpreter's place."""
    return digest({"environment": python.parent.parent.name})


def installed(python: Path, contents: Contents) -> str:
    """Digest of everything that is installed for an interpreter. Raises `OSError`."""
    sites = {str(site): contents.of(site, but=_NOT_CODE) for site in _sites(python)}
    return digest(sites)


def readable(read: Callable[[], T]) -> T:
    """What a function reads; its `OSError` as a `UsageError` that names the file."""
    try:
        return read()
    except OSError as error:
        raise UsageError(
            f"{error.filename or 'a file of the job'} cannot be read: {error.strerror or error}",
            "make it readable, or name another one",
        ) from error


def _digests(prepared: Prepared, contents: Contents) -> dict[str, str]:
    return {
        TEXT: digest(job_text(prepared)),
        PACK: prepared.pack_digest,
        HOOKS: digest({name: sha256_file(path.resolve())[0] for name, path in _hooks(prepared)}),
        **interpreter_digests(Path(prepared.job.interpreter), contents),
        **{name: contents.of(Path(path)) for name, path in prepared.job.inputs.items()},
    }


def _hooks(prepared: Prepared) -> list[tuple[str, Path]]:
    return sorted(hook_files(prepared).items())


def _libraries(python: Path) -> list[Path]:
    """Where the program's standard library lies."""
    found = python.resolve().parent.parent.glob("lib*/python3*/os.py")
    return sorted({path.parent.resolve() for path in found})


def _sites(python: Path) -> list[Path]:
    """The folders that packages are imported from, and those that they name: by ``.pth`` files, and as the
    checkout of an editable install. Sorted.
    """
    prefix, settings = python.parent.parent, python.parent.parent / "pyvenv.cfg"
    prefixes = [prefix] if settings.is_file() else [python.resolve().parent.parent]
    if settings.is_file() and _sees_system(settings):
        prefixes.append(python.resolve().parent.parent)
    if Path("/usr") in prefixes:
        prefixes.append(Path("/usr/local"))
    patterns = [f"lib*/python3*/{name}" for name in _SITES]
    found = {site.resolve() for one in prefixes for pattern in patterns for site in one.glob(pattern)}
    named = {path for site in found for path in (*_path_lines(site), *_editable(site))}
    further = {path for path in named if not any(path.is_relative_to(site) for site in found)}
    configured = {settings} if settings.is_file() else set()
    return sorted(found | further | configured)


def _sees_system(settings: Path) -> bool:
    lines = (line.partition("=") for line in settings.read_text(encoding="utf-8").splitlines())
    return any(
        name.strip() == "include-system-site-packages" and value.strip().lower() == "true"
        for name, _, value in lines
    )


def _path_lines(site: Path) -> list[Path]:
    """Folders that ``.pth`` files of a site name: editable checkouts and shared installs."""
    found = []
    for file in sorted(site.glob("*.pth")):
        for line in _naming(file).splitlines():
            if line.strip() and not line.startswith(("#", "import ", "import\t")) and "\0" not in line:
                path = Path(os.path.normpath(site / line.strip()))
                found += [path.resolve()] if path.is_dir() else []
    return found


def _editable(site: Path) -> list[Path]:
    """Checkouts of editable installs, as pip notes them (PEP 610)."""
    found = []
    for file in sorted(site.glob("*.dist-info/direct_url.json")):
        try:
            origin = json.loads(_naming(file))
            url, editable = str(origin["url"]), bool(origin["dir_info"]["editable"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # of an archive, or no such file: then its code lies in the site itself
        path = Path(unquote(urlsplit(url).path))
        if editable and url.startswith("file://") and path.is_dir():
            found.append(path.resolve())
    return found


def _naming(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(_MOST_NAMING).decode("utf-8", "replace")


def _different(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[tuple[str, object, object]]:
    names = sorted(ours.keys() | theirs.keys())
    return [(name, ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)]


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    is_digest = len(text) == 64 and not set(text) - set("0123456789abcdef")
    return f"{text[:12]}…" if is_digest else text[:80]
