"""Runs one rank of a job and says how it ended: ``python -I rank.py PROCEDURE.py``.

A program of its own, beside the framework and not inside it: it is there when the rank dies. It starts the
procedure as a child, keeps the child's output in ``logs/rank-00000.out`` and ``.err`` (the head and the tail
of a long one), passes SIGTERM and SIGINT on, writes ``exit/rank-00000.json`` by rename and ends with the
child's code. Standard library and Python 3.9 only; it imports nothing of the recorder.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

RUN = Path(__file__).absolute().parent.parent.parent
GRACE_S = 25.0
"""How long the child has after a signal was passed on: less than the 30 s that torchrun waits for us."""
POLL_S = 0.5
DRAIN_S = 1.0
"""How long output is still read after the child ended: what it started may hold the pipe open."""
LOG_BYTES = 16 * 2**20
"""Kept of one stream when the job says nothing else: half from its beginning, half from its end."""
CHUNK = 65536

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class BoundedLog:
    """A log that keeps its head and its tail; in between one line says how many bytes were dropped.

    The tail lies in two files that take turns, so that it is on disk when we are killed: ``<log>.tail`` and,
    before it, ``<log>.tail.old``; ``<log>.tail.from`` says how many bytes behind the head these begin, so
    that a reader of the growing log can count what was dropped. They are joined to the log when it is closed.
    """

    def __init__(self, path: Path, limit: int) -> None:
        """Write to the new file at ``path``; ``limit`` bytes are kept in all."""
        self._path, self._tail = path, path.with_name(path.name + ".tail")
        self._old = path.with_name(path.name + ".tail.old")
        self._head_left, self._segment = max(limit // 2, 1), max(limit // 4, 1)
        self._in_segment, self._written, self._begun = 0, 0, 0
        self.failed = ""
        self._file = path.open("xb", buffering=0)

    def write(self, data: bytes) -> None:
        """Keep what the limits leave room for. A disk that is full stops the log, not the job."""
        try:
            head, rest = data[: self._head_left], data[self._head_left :]
            if head:
                self._file.write(head)
                self._head_left -= len(head)
            self._written += len(rest)
            while rest:
                rest = self._into_segment(rest)
        except OSError as error:
            self.failed = error.strerror or str(error)

    def _into_segment(self, data: bytes) -> bytes:
        """Write what fits into the present segment and return the rest."""
        if self._in_segment >= self._segment:
            self._tail.replace(self._old)  # while there is no tail, the place is not known
            begun, self._begun, self._in_segment = self._begun, self._begun + self._in_segment, 0
            self._place(begun)
        part = data[: self._segment - self._in_segment]
        with self._tail.open("ab" if self._in_segment else "wb", buffering=0) as file:
            file.write(part)
        self._in_segment += len(part)
        return data[len(part) :]

    def _place(self, begun: int) -> None:
        """Say how many bytes behind the head the older segment begins."""
        path = self._path.with_name(self._path.name + ".tail.from")
        part = path.with_name(path.name + ".part")
        part.write_text(str(begun), encoding="ascii")
        part.replace(path)

    def close(self) -> None:
        """Join the tail to the head."""
        with self._file:
            try:
                join_tail(self._path, self._written, self._file)
            except OSError as error:
                self.failed = error.strerror or str(error)


def join_tail(path: Path, written: int, file: "IO[bytes]") -> None:
    """Append the tail segments of a log to its open file, after a line that counts what lies between."""
    segments = [path.with_name(path.name + end) for end in (".tail.old", ".tail")]
    kept = [segment.read_bytes() for segment in segments if segment.is_file()]
    dropped = written - sum(map(len, kept))
    if dropped > 0:
        file.write(b"\n[%d bytes of this log were dropped here]\n" % dropped)
    for part in kept:
        file.write(part)
    for piece in [*segments, path.with_name(path.name + ".tail.from")]:
        if piece.is_file():
            piece.unlink()


class Rank:
    """The child of this process and what became of it."""

    def __init__(self, procedure: str) -> None:
        """Start the procedure."""
        self.number = int(os.environ.get("RANK", "0"))
        self.received, self.deadline = 0, 0.0
        self.started = _now()
        limit = _log_bytes()
        logs = [RUN / "logs" / ("rank-%05d.%s" % (self.number, end)) for end in ("out", "err")]
        self.logs = [BoundedLog(path, limit) for path in logs]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._relay)
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-u", procedure],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_die_with_parent,  # safe: no thread runs yet
        )
        pipes = dict(zip(self.logs, (self.child.stdout, self.child.stderr)))  # noqa: B905 - Python 3.9
        self.pumps = [
            threading.Thread(target=_pump, args=(pipe.fileno(), log), daemon=True)
            for log, pipe in pipes.items()
            if pipe is not None
        ]
        for pump in self.pumps:
            pump.start()

    def wait(self) -> int:
        """Wait for the child, write the exit file and return the code to end with."""
        status = self._child_status()
        stopped, ended = self.received, _now()
        for pump in self.pumps:
            pump.join(DRAIN_S)
        for log in self.logs:
            log.close()
        self._write_exit(status, stopped, ended)
        return status if status >= 0 else 128 - status

    def _child_status(self) -> int:
        """The child's code, or minus the signal that ended it; one that outlives a signal is killed."""
        while True:
            try:
                return self.child.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if self.received and time.monotonic() > self.deadline:
                    self.child.kill()

    def _relay(self, number: int, _: object) -> None:
        if not self.received:
            self.received, self.deadline = number, time.monotonic() + GRACE_S
        if self.child.poll() is None:
            self.child.send_signal(number)

    def _write_exit(self, status: int, stopped: int, ended: str) -> None:
        failed = sorted({log.failed for log in self.logs if log.failed})
        record = {
            "rank": self.number,
            "code": status if status >= 0 else None,
            "signal": -status if status < 0 else None,
            "timed_out": False,
            "host": socket.gethostname(),
            "started": self.started,
            "ended": ended,
            "stopped": bool(stopped),
            "reason": _reason(status, stopped) + "".join("; its log is cut: " + why for why in failed),
        }
        path = RUN / "exit" / ("rank-%05d.json" % self.number)
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(path)


def _reason(status: int, stopped: int) -> str:
    if stopped:
        return "told to stop by %s" % signal.Signals(stopped).name
    if status < 0:
        return "killed by signal %d" % -status
    return "ended by itself"


def _pump(descriptor: int, log: BoundedLog) -> None:
    while True:
        data = os.read(descriptor, CHUNK)
        if not data:
            return
        log.write(data)


def _log_bytes() -> int:
    try:
        job = json.loads((RUN / "job.json").read_text(encoding="utf-8"))
        return int(job.get("log_bytes") or LOG_BYTES)
    except (OSError, ValueError, AttributeError):
        return LOG_BYTES


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def main() -> int:
    """Run the named procedure as this rank."""
    _die_with_parent()  # the launcher of several ranks may be killed too
    return Rank(sys.argv[1]).wait()


if __name__ == "__main__":
    sys.exit(main())
