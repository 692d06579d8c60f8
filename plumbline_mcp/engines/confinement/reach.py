"""The paths that a job may read and write, the same under every confinement.

It reads its interpreter with what that imports, the system's libraries, its inputs and its own run folder.
It writes below the run folder's ``records``, ``logs``, ``exit``, ``output`` and ``scratch``. Of a folder that
is allowed and holds keys or configurations (a virtual environment that is a home folder), all but those.
"""

import itertools
import json
import os
import pwd
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from approvals.trust_folder import default_folder

WRITTEN = ("records", "logs", "exit", "output", "scratch")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys")
_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "os-release"),
    *("hosts", "host.conf", "hostname", "nsswitch.conf", "resolv.conf", "gai.conf", "protocols", "services"),
    *("passwd", "group", "mime.types", "ssl/certs", "ssl/openssl.cnf", "pki/tls", "pki/ca-trust"),
    *("ca-certificates", "OpenCL", "vulkan", "magic", "inputrc", "bash.bashrc"),
)
DEVICES = ("null", "zero", "full", "random", "urandom")
_ACCELERATORS = ("nvidia*", "kfd", "dri", "infiniband", "accel", "davinci*", "hl*")
_SECRETS = (
    *(
        ".ssh",
        ".gnupg",
        ".aws",
        ".azure",
        ".config",
        ".kube",
        ".docker",
        ".netrc",
        ".pypirc",
        ".password-store",
    ),
    *(".git-credentials", ".gitconfig", ".local/share/keyrings", ".mozilla", ".bash_history", ".huggingface"),
    *(".cache/huggingface/token", ".cache/huggingface/stored_tokens"),
)
_PROBE_LIMIT_S = 120
_MOST_LINKS = 20_000
_PROBE = """
import importlib.metadata, json, sys
found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *filter(None, sys.path)]
for one in importlib.metadata.distributions():
    try:
        origin = json.loads(one.read_text("direct_url.json") or "{}")
        if origin["dir_info"].get("editable") and origin["url"].startswith("file://"):
            from urllib.parse import unquote, urlsplit
            found.append(unquote(urlsplit(origin["url"]).path))
    except (KeyError, ValueError, TypeError, AttributeError, OSError):
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Reach:
    """Absolute paths that exist, links resolved or not as the job will name them."""

    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    devices: tuple[Path, ...]


def reach(run: Path, interpreter: Path, inputs: list[Path]) -> Reach:
    """What the job of a run folder may reach. The user's secrets, the trust roots, the workspace's database
    and other runs stay out, also where a link in an input leads to them; an input that is a run is read.

    The interpreter is asked where it imports from, alone and with a clean environment. Raises `OSError` and
    `subprocess.SubprocessError` when it does not answer.
    """
    workspace = run.parent.parent.resolve()
    secrets = [home / name for home in _homes() for name in _SECRETS]
    secrets += [workspace / f"plumbline.db{end}" for end in ("", "-wal", "-shm")]
    if (trust := default_folder()).is_dir():
        secrets.append(trust.resolve())
    libraries = [Path(one) for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one.startswith("/")]
    code = [interpreter.parent, interpreter.resolve().parent, *import_paths(interpreter)]
    code += [*map(Path, _SYSTEM), *(Path("/etc", one) for one in _SETTINGS), *libraries]
    runs = workspace / "runs"
    reads = [part for path in _with_targets(code, deep=False) for part in _without(path, [*secrets, runs])]
    reads += [part for path in _with_targets(inputs, deep=True) for part in _without(path, secrets)]
    reads.append(run)
    devices = [Path("/dev", name) for name in DEVICES]
    devices += [path for pattern in _ACCELERATORS for path in Path("/dev").glob(pattern)]
    writes = tuple(run / name for name in WRITTEN)
    return Reach(tuple(dict.fromkeys(reads)), writes, tuple(devices))


def _homes() -> list[Path]:
    """Where our user's keys lie: the home of the account; an id without a name has only what HOME says."""
    try:
        return [Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()]
    except KeyError:
        said = os.environ.get("HOME", "")
        return [Path(said).resolve()] if said.startswith("/") else []


def import_paths(interpreter: Path) -> list[Path]:
    """Prefixes, import path and editable checkouts of an interpreter, as it says itself."""
    passed = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}
    answer = subprocess.run(
        [str(interpreter), "-I", "-c", _PROBE],
        env={"PATH": os.defpath, "LANG": "C.UTF-8"} | passed,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROBE_LIMIT_S,
        check=True,
    )
    found = json.loads(answer.stdout)
    return [path for one in found if (path := Path(str(one))).is_absolute() and path.exists()]


def _with_targets(paths: list[Path], deep: bool) -> Iterator[Path]:
    """The paths that exist, and where links lead out of them: packages of an overlay, blobs of a cache."""
    for path in paths:
        if not path.exists():
            continue
        yield path
        if path.resolve() != path:
            yield path.resolve()
        for link in itertools.islice(_links(path, deep), _MOST_LINKS):
            target = link.resolve()
            if target.exists() and not target.is_relative_to(path):
                yield target


def _links(folder: Path, deep: bool) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink())
        if not deep:
            return


def withheld(reads: Iterable[Path], protected: list[Path]) -> Iterator[Path]:
    """What is left of the paths that may be read without the protected ones; each leads where it is named."""
    for path in reads:
        yield from _without(path, protected)


def _without(path: Path, protected: list[Path]) -> Iterator[Path]:
    """The path, or its parts when one of the protected paths lies below it; nothing inside of those."""
    place = path.resolve()
    if any(place.is_relative_to(one) for one in protected):
        return
    if path.is_dir() and any(one.is_relative_to(place) for one in protected):
        for part in sorted(path.iterdir()):
            yield from _without(part, protected)
        return
    yield path
