"""Runs a proposed check from outside: starts it confined, watches what it takes, reads what it says.

A worker calls this (`plumbline_mcp.workers.call`), so a client that gives up, a server that ends and a time
limit end the check too. Nothing of its file is loaded here.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.check import Progress
from checks.errors import Inconclusive, NotEvaluated
from plumbline_mcp.engines.confinement import system_calls
from plumbline_mcp.engines.confinement.choosing import (
    AUTOMATIC,
    BUBBLEWRAP,
    LANDLOCK,
    Chosen,
    Confined,
    Unavailable,
    choose,
    confined,
)
from plumbline_mcp.engines.confinement.reach import Reach, reach, withheld
from plumbline_mcp.engines.local.processes import descendants, send
from plumbline_mcp.engines.local.space import taken
from plumbline_mcp.engines.local.starting import started
from plumbline_mcp.scan.proposed_child import NOT_HELD, SCRATCH

ANSWER_BYTES = 4 * 2**20
"""What is read of an answer; a longer one is none."""
_HOLDING = (LANDLOCK, BUBBLEWRAP)
_FILTERED = "a filter of system calls: no network, no other process, no signal, no mode of a file"
_SAID_BYTES = 64 * 1024
_POLL_S = 0.02
_LAST_SAID = 300
_LAST_WORDS_S = 5.0


@dataclass(frozen=True)
class Limits:
    """What a proposed check may take."""

    seconds: float = 600.0
    memory_bytes: int = 8 * 2**30
    """Of address space, which the kernel holds."""
    resident_bytes: int = 4 * 2**30
    """Of memory in use, which is looked at every fiftieth of a second."""
    threads: int = 64
    disk_bytes: int = 256 * 2**20
    open_files: int = 256

    def for_child(self) -> dict[str, int]:
        """Those that the kernel holds."""
        return {
            "memory_bytes": self.memory_bytes,
            "cpu_s": max(1, round(4 * self.seconds)),
            "file_bytes": self.disk_bytes,
            "open_files": self.open_files,
        }


def run(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge with the check in ``payload["folder"]``: its answer, and what held it.

    Raises `NotEvaluated` where it cannot be held here, and `Inconclusive` when it was ended or said nothing.
    """
    folder, limits = Path(payload["folder"]), Limits(**payload["limits"])
    inputs, protected = ([Path(one) for one in payload[name]] for name in ("reads", "protected"))
    progress(0, None, "confining the proposed check")
    held = chosen(payload["confinement"], folder, inputs)
    reading, writing = os.pipe()
    with (folder / "said").open("wb") as said, os.fdopen(reading, "rb") as answers:
        try:
            process = started(_command(held.kind, folder, inputs, protected), writing, said.fileno())
        except OSError as error:
            raise NotEvaluated(f"the check cannot be confined here: {error}", "see docs/jobs.md") from error
        finally:
            os.close(writing)
        try:
            progress(0, None, "the proposed check judges")
            answer = _Watch(process.pid, folder, limits).read(answers.fileno())
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS_S)  # it has said all; its exit code says why
        finally:
            _kill(process.pid)
            code = process.wait()
    return {"answer": _parsed(answer, code, folder), "confinement": f"{held.kind} and {_FILTERED}"}


def chosen(wanted: str, folder: Path, inputs: list[Path]) -> Chosen:
    """What will hold its files: landlock, else bubblewrap. Raises `NotEvaluated`."""
    why = system_calls.unavailable()
    reasons = [why] if why else []
    for kind in _HOLDING if wanted == AUTOMATIC else (wanted,):
        if why:
            break
        if kind not in _HOLDING:
            reasons.append(f"{kind} does not hold its files")
            continue
        try:
            return choose(kind, folder.parent, Path(sys.executable), inputs)
        except Unavailable as error:
            reasons.append(str(error))
    raise NotEvaluated(
        f"a proposed check is run only where it can be confined: {'; '.join(reasons)}",
        "run it on Linux 5.13 or newer, or install bubblewrap",
    )


def _command(kind: str, folder: Path, inputs: list[Path], protected: list[Path]) -> Confined:
    """The child under a confinement. Links inside an input lead to nothing that is protected."""
    scratch, runs = folder / SCRATCH, folder.parent.parent.resolve() / "runs"
    own_runs = [path for path in inputs if path.resolve().parent == runs]
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    variables = [f"{name}={value}" for name, value in environment.items()]
    child = [sys.executable, "-I", "-B", "-m", "plumbline_mcp.scan.proposed_child", str(folder)]

    def allowed() -> Reach:
        found = reach(folder, Path(sys.executable), inputs)
        reads = dict.fromkeys((*withheld(found.reads, protected), folder, *own_runs))
        return Reach(tuple(reads), (scratch,), ())

    held = confined(kind, folder, allowed, child, memory_files=False)
    return Confined(["/usr/bin/env", "-i", *variables, *held.command], held.apply)


class _Watch:
    """Reads the answer while it looks at time, memory, threads and disk."""

    def __init__(self, pid: int, folder: Path, limits: Limits) -> None:
        self._pid, self._folder, self._limits = pid, folder, limits
        self._deadline = time.monotonic() + limits.seconds

    def read(self, descriptor: int) -> bytes:
        """All that it says until it ends. Raises `Inconclusive` for the limit that it met."""
        found = b""
        while True:
            if select.select([descriptor], [], [], _POLL_S)[0]:
                data = os.read(descriptor, 65536)
                if not data:
                    return found
                found += data
            self._refuse(len(found))

    def _refuse(self, answered: int) -> None:
        limits = self._limits
        if time.monotonic() > self._deadline:
            _ended(f"it did not end within {limits.seconds:g} s")
        if answered > ANSWER_BYTES:
            _ended(f"it answered more than {ANSWER_BYTES:,} bytes")
        memory, threads = _taken(self._pid)
        if memory > limits.resident_bytes:
            _ended(f"it took more than {limits.resident_bytes:,} bytes of memory")
        if threads > limits.threads:
            _ended(f"it started more than {limits.threads} threads")
        if taken(self._folder) > limits.disk_bytes:
            _ended(f"it took more than {limits.disk_bytes:,} bytes of disk")


def _ended(why: str) -> None:
    raise Inconclusive(f"the proposed check was ended: {why}", "mend the check")


def _taken(pid: int) -> tuple[int, int]:
    """Resident bytes and threads of a process and all below it."""
    memory = threads = 0
    for each in (pid, *(one.pid for one in descendants(pid))):
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{each}/status").read_text(errors="replace").splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            memory += 1024 * int(fields.get("VmRSS", "0").split()[0])
            threads += int(fields.get("Threads", "0"))
    return memory, threads


def _kill(pid: int) -> None:
    for one in descendants(pid):
        send(one, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _parsed(answer: bytes, code: int, folder: Path) -> dict[str, Any]:
    """The one line of JSON. Raises `NotEvaluated` and `Inconclusive`."""
    if code == NOT_HELD:
        raise NotEvaluated(
            f"a proposed check is run only where it can be confined: {_said(folder)}", "see docs/jobs.md"
        )
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise Inconclusive(f"the proposed check gave no answer ({how}): {_said(folder)}", "mend the check")
    return found


def _said(folder: Path) -> str:
    with (folder / "said").open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _SAID_BYTES))
        lines = file.read(_SAID_BYTES).decode(errors="replace").strip().splitlines()
    return lines[-1][:_LAST_SAID] if lines else "it said nothing"
