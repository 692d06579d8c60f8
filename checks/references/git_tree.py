"""Reads a git checkout's commit and tree without trusting it: no hook, filter or configured program runs."""

import base64
import hashlib
import os
import re
import subprocess
from pathlib import Path, PurePosixPath

from checks.errors import NotEvaluated
from checks.records.probe import FileState

GIT_BLOB = "git-blob"

_TIME_LIMIT_S = 120
_IMPORTABLE = (".py", ".so", ".pyd", ".pyc")
_SAMPLE_BYTES = 8192


def head(checkout: Path) -> str:
    """The commit that is checked out (hex). Raises `NotEvaluated` when the folder is no git checkout."""
    commit = _git(checkout, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise NotEvaluated(f"{checkout} has no commit checked out", "name a git checkout of the framework")
    return commit


def top(folder: Path) -> Path:
    """The root of the checkout that holds a folder. Raises `NotEvaluated`."""
    return Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))


def blobs(checkout: Path, commit: str, folder: str = ".") -> dict[str, str]:
    """Blob digests (hex) of the plain files of a commit below a folder, by path relative to the checkout."""
    listing = _git(checkout, "ls-tree", "-r", "-z", "--full-tree", commit, "--", folder)
    found = {}
    for entry in listing.split(b"\0"):
        about, _, name = entry.partition(b"\t")
        if about.startswith(b"100"):  # 100644 and 100755: plain files; links and submodules are not compared
            found[os.fsdecode(name)] = about.split()[2].decode()
    return found


def tree_files(checkout: Path, commit: str, folder: Path) -> tuple[tuple[FileState, ...], tuple[str, ...]]:
    """The files of a package folder in a checkout against a commit, and importable files unknown to git."""
    relative = folder.relative_to(checkout).as_posix()
    recorded = blobs(checkout, commit, relative)
    states = tuple(
        FileState(
            name=name, algorithm=GIT_BLOB, recorded=digest, measured=blob_of_file(checkout / name, digest)
        )
        for name, digest in sorted(recorded.items())
    )
    return states, tuple(sorted(_unknown(checkout, folder, set(recorded))))


def blob_digest(content: bytes, like: str) -> str:
    """The digest that git gives a file's content (hex), SHA-1 or SHA-256 as ``like`` is long."""
    algorithm = "sha1" if len(like) == 40 else "sha256"
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def blob_of_file(path: Path, like: str) -> str | None:
    """The blob digest of a plain file on disk; None when it is missing or no plain file."""
    try:
        return blob_digest(path.read_bytes(), like) if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None


def with_sample(states: tuple[FileState, ...], checkout: Path) -> tuple[FileState, ...]:
    """The same states; the smallest intact code file carries its bytes."""
    intact = [s for s in states if s.measured == s.recorded and s.name.endswith(".py")]
    sized = [(size, s) for s in intact if 0 < (size := (checkout / s.name).stat().st_size) <= _SAMPLE_BYTES]
    if not sized:
        return states
    chosen = min(sized, key=lambda entry: entry[0])[1]
    content = base64.b64encode((checkout / chosen.name).read_bytes()).decode()
    return tuple(s.model_copy(update={"content": content}) if s is chosen else s for s in states)


def _unknown(checkout: Path, folder: Path, known: set[str]) -> list[str]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = str(PurePosixPath(Path(place, name).relative_to(checkout)))
            if path.endswith(_IMPORTABLE) and path not in known:
                found.append(path)
    return found


def _git(folder: Path, *arguments: str) -> bytes:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch through a program that it names
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(
            command, capture_output=True, env=environment, timeout=_TIME_LIMIT_S, check=False
        )
    except FileNotFoundError as error:
        raise NotEvaluated(
            "git is not installed", "install git to compare a checkout with its tree"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NotEvaluated(f"git did not answer for {folder} within {_TIME_LIMIT_S} s") from error
    if answer.returncode:
        said = answer.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise NotEvaluated(f"{folder} cannot be read as a git checkout: {''.join(said)[:200]}")
    return answer.stdout
