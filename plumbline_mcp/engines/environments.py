"""Builds a framework's Python environment: pinned wheels as an overlay on one torch, cached by digest.

torch is a gigabyte and the same for every framework, so an environment links the base interpreter's torch
and installs everything else beside it. An environment is built where it will stay (its scripts name their
interpreter by absolute path), under a lock, and counts only once ``complete.json`` lies in it, which is
written last and by rename: a build that was killed at any moment is swept by the next one.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from checks.check import Progress, silent
from plumbline_mcp import workers
from plumbline_mcp.engines.pip import install
from plumbline_mcp.errors import BuildError, UsageError

BUILDER_FORMAT = 1
"""Part of every digest: raised when the builder lays environments out differently."""

_LINKED = ("torch", "torchgen", "functorch")
_COMPLETE = "complete.json"
_DESCRIBE = """
import importlib.metadata, importlib.util, json, platform
spec = importlib.util.find_spec("torch")
distribution = importlib.metadata.distribution("torch") if spec else None
print(json.dumps({
    "python": platform.python_version(), "machine": platform.machine(),
    "torch": distribution.version if distribution else None,
    "site": str(distribution.locate_file("")) if distribution else None,
}))
"""


@dataclass(frozen=True)
class Environment:
    """A finished environment: its interpreter, the digest of what it was built from, and where it lies."""

    python: Path
    digest: str
    path: Path


@dataclass(frozen=True)
class _Base:
    """The interpreter whose torch is linked."""

    executable: Path
    python: str
    machine: str
    torch: str
    site: Path


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/plumbline/environments``, by default below ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "plumbline" / "environments"


def is_built(python: Path) -> bool:
    """Whether this is the interpreter of an environment that was built here and finished."""
    path = python.parent.parent
    return is_environment(python) and _finished(Environment(python, path.name, path))


def is_environment(python: Path) -> bool:
    """Whether an interpreter's place is that of an environment of ours, built or not."""
    path = python.parent.parent
    return python == path / "bin" / "python" and path.parent == default_cache().resolve()


def planned(
    requirements: Sequence[str],
    *,
    without_dependencies: Sequence[str] = (),
    hashes: Mapping[str, Sequence[str]] | None = None,
) -> Environment:
    """The environment that `build` makes of these, whether it is built yet or not. Raises `UsageError`."""
    base = _describe(Path(sys.executable))
    return _environment(_spec(requirements, without_dependencies, hashes, base), default_cache())


def build(
    requirements: Sequence[str],
    *,
    without_dependencies: Sequence[str] = (),
    hashes: Mapping[str, Sequence[str]] | None = None,
    python: Path | None = None,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Environment:
    """Build the environment, or take it from the cache. Blocks (see `build_in_worker`).

    With ``hashes`` (requirement to ``algorithm:digest``) nothing is installed that they do not list, bytes
    included (pip's ``--require-hashes``).

    ``without_dependencies`` are installed last and alone (pip's ``--no-deps``), whatever their metadata asks.
    ``python`` is the interpreter whose torch is linked, by default the running one. Raises `UsageError`
    (a requirement or interpreter that cannot be used) and `BuildError` (pip or the disk failed).
    """
    base = _describe(python or Path(sys.executable))
    spec = _spec(requirements, without_dependencies, hashes, base)
    environment = _environment(spec, cache or default_cache())
    path = environment.path
    if _finished(environment):
        return environment
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path, progress) as lock:
            if not _finished(environment):
                _sweep(path.parent, path)
                _build(environment, base, spec, lock, progress)
    except OSError as error:
        raise _no_disk(path, error) from error
    return environment


async def build_in_worker(
    requirements: Sequence[str],
    *,
    without_dependencies: Sequence[str] = (),
    hashes: Mapping[str, Sequence[str]] | None = None,
    progress: Progress = silent,
) -> Environment:
    """`build` on the running interpreter, in a worker: pip ends with the program, however that is stopped."""
    payload = {
        "requirements": list(requirements),
        "without_dependencies": list(without_dependencies),
        "hashes": {name: list(given) for name, given in (hashes or {}).items()},
    }
    made = await workers.call(f"{__name__}:build_asked", payload, progress=progress)
    return Environment(Path(made["python"]), made["digest"], Path(made["path"]))


def build_asked(payload: dict[str, Any], progress: Progress) -> dict[str, str]:
    """Worker entry of `build_in_worker`."""
    made = build(**payload, progress=progress)
    return {"python": str(made.python), "digest": made.digest, "path": str(made.path)}


def _spec(
    requirements: Sequence[str],
    without_dependencies: Sequence[str],
    hashes: Mapping[str, Sequence[str]] | None,
    base: _Base,
) -> dict[str, object]:
    """All that decides an environment."""
    wanted = _parsed(requirements)
    alone, hashed = _parsed(without_dependencies), _hashed(hashes or {}, wanted, base)
    return {
        "format": BUILDER_FORMAT,
        "requirements": wanted,
        "without_dependencies": alone,
        "torch": base.torch,
        "python": base.python,
        "machine": base.machine,
        **({"hashes": hashed} if hashed else {}),
    }


def _environment(spec: dict[str, object], cache: Path) -> Environment:
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    path = cache.absolute() / digest[:32]
    return Environment(path / "bin" / "python", digest, path)


def _parsed(requirements: Sequence[str]) -> list[str]:
    """Requirements in one canonical spelling and order."""
    found = set()
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise UsageError(f"{text!r} is no requirement: {error}", "write it as name==version") from error
        if requirement.url and not requirement.url.split("#")[0].endswith(".whl"):
            raise UsageError(
                f"{text!r} would be built from source", "name a wheel: only wheels are installed"
            )
        found.add(str(requirement))
    return sorted(found)


def _hashed(hashes: Mapping[str, Sequence[str]], wanted: list[str], base: _Base) -> dict[str, list[str]]:
    """Hashes by requirement in the canonical spelling, without torch, which is linked and never installed.

    Raises `UsageError` for a requirement without a hash and for a torch that is not the base's.
    """
    found = {str(Requirement(name)): sorted(given) for name, given in hashes.items()}
    for name in wanted if found else ():
        if not found.get(name):
            raise UsageError(f"{name} has no hash and others have", "give every requirement its hashes")
        requirement = Requirement(name)
        if canonicalize_name(requirement.name) != "torch":
            continue
        if not requirement.specifier.contains(base.torch, prereleases=True):
            raise UsageError(
                f"the list pins {name} and {base.executable} has torch {base.torch}, which is shared",
                "list that torch, or name an interpreter that holds yours",
            )
        del found[name]
    return found


def _describe(python: Path) -> _Base:
    if not os.access(python, os.X_OK):
        raise UsageError(
            f"{python} is no interpreter that can be started", "name a Python, e.g. .venv/bin/python"
        )
    try:
        answer = subprocess.run(
            [python, "-I", "-c", _DESCRIBE], capture_output=True, text=True, timeout=60, check=True
        )
        facts = json.loads(answer.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        raise UsageError(f"{python} does not answer as a Python interpreter: {error}") from error
    if facts["torch"] is None:
        raise UsageError(f"{python} has no torch to build on", f"install one: {python} -m pip install torch")
    return _Base(python, facts["python"], facts["machine"], facts["torch"], Path(facts["site"]))


def _finished(environment: Environment) -> bool:
    """Whether the build ended and the torch it links still exists."""
    torch = environment.path.glob("lib/python3*/site-packages/torch/__init__.py")
    return (environment.path / _COMPLETE).is_file() and any(file.exists() for file in torch)


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[int]:
    """Hold the lock of one environment. pip inherits it: a build whose parent was killed still holds it."""
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(0, None, "another process builds this environment; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _sweep(cache: Path, own: Path) -> None:
    """Remove what killed builds left: unfinished folders that nobody builds now (ours is locked by us)."""
    for folder in cache.iterdir():
        if folder == own:
            shutil.rmtree(folder)
        elif folder.is_dir() and not (folder / _COMPLETE).is_file():
            with contextlib.suppress(BlockingIOError), _tried(folder):
                if not (folder / _COMPLETE).is_file():
                    shutil.rmtree(folder)


@contextlib.contextmanager
def _tried(folder: Path) -> Iterator[None]:
    """Hold another environment's lock. Raises `BlockingIOError` while somebody builds it."""
    descriptor = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _build(
    environment: Environment, base: _Base, spec: dict[str, object], lock: int, progress: Progress
) -> None:
    path = environment.path
    progress(0, 3, f"environment {environment.digest[:12]}: an interpreter beside torch {base.torch}")
    try:
        _interpreter(path, base)
        site = next(path.glob("lib/python3*/site-packages"))
        links = _link_torch(base, site)
        for step, (names, options) in enumerate(_installs(spec, path), start=1):
            progress(step, 3, f"installing {len(names)} requirements")
            install(environment.python, names, options, lock, progress)
        _check_links(links)
        _write_complete(path, {**spec, "digest": environment.digest, "distributions": _distributions(site)})
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    progress(3, 3, f"environment ready: {environment.python}")


def _installs(spec: dict[str, object], path: Path) -> list[tuple[list[str], list[str]]]:
    """The pip calls of a build: what to install and with which options. None may touch the linked torch."""
    hashes = spec.get("hashes")
    if isinstance(hashes, dict):  # pip wants hashes of constraints too; torch is no line of the list
        return [(sorted(hashes), ["--require-hashes", "-r", str(_write_hashed(path, hashes))])]
    constraint = path / "constraints.txt"
    constraint.write_text(f"torch=={spec['torch']}\n", encoding="utf-8")
    bound = ["-c", str(constraint)]
    calls = [(spec["requirements"], bound), (spec["without_dependencies"], ["--no-deps", *bound])]
    return [(names, options) for names, options in calls if isinstance(names, list) and names]


def _write_hashed(path: Path, hashes: dict[str, list[str]]) -> Path:
    """The list as pip reads it; a requirement may not be repeated on the command line."""
    lines = (f"{name} {' '.join(f'--hash={each}' for each in given)}" for name, given in hashes.items())
    listed = path / "requirements.txt"
    listed.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    return listed


def _interpreter(path: Path, base: _Base) -> None:
    command = [str(base.executable), "-I", "-m", "venv", "--without-pip", "--symlinks", str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if answer.returncode:
        last = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
        raise BuildError(
            f"{base.executable} cannot make a virtual environment: {' '.join(last)}",
            "install Python's venv module, or name another interpreter",
        )


def _link_torch(base: _Base, site: Path) -> list[Path]:
    """Link the base's torch and its metadata, nothing else, so that pip takes it as installed."""
    metadata = [folder for folder in base.site.glob("torch-*.dist-info") if folder.is_dir()]
    present = [base.site / name for name in _LINKED if (base.site / name).is_dir()]
    links = []
    for source in [*present, *metadata]:
        link = site / source.name
        link.symlink_to(source.resolve(), target_is_directory=True)
        links.append(link)
    return links


def _check_links(links: list[Path]) -> None:
    changed = [link.name for link in links if not link.is_symlink()]
    if changed:
        raise BuildError(
            f"a requirement replaced {', '.join(changed)}, which this environment shares with its base",
            "choose requirements that accept the base's torch",
        )


def _distributions(site: Path) -> list[str]:
    return sorted(folder.name.removesuffix(".dist-info") for folder in site.glob("*.dist-info"))


def _write_complete(path: Path, content: dict[str, object]) -> None:
    temporary = path / f".{_COMPLETE}"
    with temporary.open("w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path / _COMPLETE)


def _no_disk(path: Path, error: OSError) -> BuildError:
    return BuildError(
        f"the environment cannot be written to {path.parent}: {error.strerror or error}",
        "free space there, or set XDG_CACHE_HOME to a folder with a few hundred megabytes",
    )
