"""Runs the environment probe inside another interpreter and reads what it says, within bounds.

The interpreter is one that the user named. What it prints is untrusted: bounded, and read strictly. A name
may be wrong, so nothing that another program could act on is given to it: first ``--version`` alone, which
only tells; then, to what answered as a Python, the probe's text on standard input. No path is an argument.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import Field, ValidationError

import checks
from checks.errors import BadInput, NotEvaluated
from checks.rules import PROBE_MAX_BYTES, PROBE_TIME_LIMIT_S
from checks.verdict import Frozen

PROBE = Path(checks.__file__).parent.parent / "templates" / "recorder" / "probe_environment.py"

_MARK = b"plumbline-probe "
_VERSION = re.compile(rb"^Python (\d+)\.(\d+)", re.MULTILINE)
_OLDEST = (3, 9)


class VcsInfo(Frozen, extra="ignore"):
    """Which commit was installed (PEP 610)."""

    vcs: str = ""
    requested_revision: str = ""
    commit_id: str = ""


class DirInfo(Frozen, extra="ignore"):
    """That a folder was installed (PEP 610)."""

    editable: bool = False


class DirectUrl(Frozen, extra="ignore"):
    """Where a distribution was installed from, when that was no index (PEP 610)."""

    url: str = ""
    vcs_info: VcsInfo | None = None
    dir_info: DirInfo | None = None


class Distribution(Frozen):
    """An installed distribution; of two with one name, the first on the path."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str | None = None
    location: str = ""
    direct_url: DirectUrl | None = None
    versions_here: tuple[str, ...] = Field((), description="of every one with this name in its folder")
    folders: int = Field(1, description="folders of the path that hold one with this name")
    top_level: tuple[str, ...] = Field((), description="import names, where setuptools wrote them")
    missing: tuple[str, ...] = Field((), description="files of its top-level modules that are gone")
    shadowed: tuple[str, ...] = Field((), description="unrecorded files imported in place of its modules")


class FileState(Frozen):
    """A file with the digest that was recorded for it and the digest that was measured."""

    name: str
    algorithm: str = Field(description="sha256 as RECORD spells it, or git-blob")
    recorded: str
    measured: str | None = Field(None, description="None: missing, no plain file, or an unknown algorithm")
    content: str | None = Field(None, description="base64 of a small file's bytes")


class FrameworkFiles(Frozen):
    """The files of one framework distribution."""

    name: str
    has_record: bool
    files: tuple[FileState, ...] = ()
    unrecorded: tuple[str, ...] = Field((), description="importable files that no distribution recorded")
    unhashed: tuple[str, ...] = Field((), description="files that are recorded without a digest")
    reference: Literal["RECORD", "conda package"] = "RECORD"


class Module(Frozen):
    """Where the framework's code would be imported from."""

    name: str
    origin: str | None = None
    folders: tuple[str, ...] = Field((), description="of a namespace package, which has no origin")
    version: str | None = Field(None, description="what its text states")


class StartupHook(Frozen):
    """A file that runs when the interpreter starts and that nothing installed vouches for."""

    file: str
    why: str


class Python(Frozen):
    """The judged interpreter."""

    executable: str
    version: str
    prefix: str


class EnvironmentProbe(Frozen):
    """What the probe says of an environment."""

    format: Literal[1]
    python: Python
    markers: dict[str, str]
    distributions: tuple[Distribution, ...]
    framework: tuple[FrameworkFiles, ...]
    module: Module
    startup: tuple[StartupHook, ...] = ()


def probe(python: Path, distributions: tuple[str, ...], module: str) -> tuple[EnvironmentProbe, str, int]:
    """The environment of ``python``, with the SHA-256 and the size in bytes of the raw record.

    Raises `BadInput` for something that is no working Python, and `NotEvaluated` for one that answers with
    too much or not in time.
    """
    if not python.is_file() or not os.access(python, os.X_OK):
        raise BadInput(
            f"{python} is no interpreter that can be started", "name a Python, e.g. venv/bin/python"
        )
    _is_python(python)
    raw = answer_of(python, PROBE, {"distributions": distributions, "module": module})
    try:
        record = EnvironmentProbe.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise NotEvaluated(f"the probe in {python} answered in an unknown form: {first['msg']}") from error
    return record, hashlib.sha256(raw).hexdigest(), len(raw)


def answer_of(python: Path, program: Path, request: dict[str, Any]) -> bytes:
    """The JSON line with which ``program`` answers a request inside an interpreter.

    Raises `BadInput` when there is none, `NotEvaluated` for one that is too long or late.
    """
    source = f"import sys; sys.argv[1:] = [{json.dumps(request)!r}]\n".encode() + program.read_bytes()
    output = _output([str(python), "-I", "-"], source)
    line = next((line for line in output.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise _no_python(python, output)
    return line.removeprefix(_MARK)


def _is_python(python: Path) -> None:
    """Ask for the version and nothing else: ``rm``, ``tee`` or a shell given the same only say what they are.

    Raises `BadInput` for another program, `NotEvaluated` for one that does not end.
    """
    output = _output([str(python), "--version"], b"")
    found = _VERSION.search(output)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST:
        raise _no_python(python, output)


def _no_python(python: Path, output: bytes) -> BadInput:
    last = output.decode("utf-8", "replace").strip().splitlines()[-1:]
    return BadInput(
        f"{python} does not answer as a Python 3.9 or newer: {''.join(last)[:200] or 'no output'}",
        "name the interpreter that the job is started with",
    )


def _output(command: list[str], given: bytes) -> bytes:
    """Standard output and error of a command, within `PROBE_TIME_LIMIT_S` and `PROBE_MAX_BYTES`.

    ``given`` is its standard input, from a file without a name: whoever does not read it blocks nobody.
    """
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        return _bounded_output(command, file)


def _bounded_output(command: list[str], given: IO[bytes]) -> bytes:
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    if "LD_LIBRARY_PATH" in os.environ:  # some interpreters find their own library through it
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    options: dict[str, Any] = {"stdin": given, "stderr": subprocess.STDOUT, "env": environment}
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **options)
    except OSError as error:
        raise BadInput(f"{command[0]} cannot be started: {error.strerror}", "name a Python") from error
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill(process)

    timer = threading.Timer(PROBE_TIME_LIMIT_S, expire)
    timer.start()
    try:
        output = process.stdout.read(PROBE_MAX_BYTES + 1) if process.stdout else b""
    finally:
        timer.cancel()
        _kill(process)
        process.wait()
    if expired.is_set():
        raise NotEvaluated(f"{command[0]} did not answer within {PROBE_TIME_LIMIT_S} s", "try it by hand")
    if len(output) > PROBE_MAX_BYTES:
        raise NotEvaluated(f"{command[0]} answered with more than {PROBE_MAX_BYTES} bytes", "try it by hand")
    return bytes(output)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
