"""Runs one job and outlives all of it: ``python -I supervisor.py RUN_FOLDER TIME_LIMIT_S``.

Standard library only; a program of its own, so that it can be the *subreaper* of the job: a process that
the job put into another session still becomes its child and is ended before the run counts as over. It
ends the job at the time limit, on SIGTERM, and when its standard input closes (whoever started it died).
It writes the exit file by rename and exits with 0 only when no process of the job is left.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

POLL_S = 0.05
GRACE_S = 3.0
"""How long processes have after SIGTERM."""
LEFT_BEHIND_S = 2.0
"""How long what a job leaves behind may still run by itself."""
NOT_GONE = 4
"""Exit code: a process of the job could not be ended, so the run must not be sealed."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Supervisor:
    """One job, its descendants and what became of them."""

    def __init__(self, run: Path, time_limit_s: float) -> None:
        self.run = run
        self.ranks = int(json.loads((run / "job.json").read_text(encoding="utf-8"))["world_size"])
        self.deadline = time.monotonic() + time_limit_s
        self.cancelled = False
        self.timed_out = False
        self.hung: set[int] = set()
        self.status: int | None = None
        self.started = _now()
        signal.signal(signal.SIGTERM, self._stop)
        with contextlib.ExitStack() as stack:
            logs = [run / "logs" / f"launcher.{end}" for end in ("out", "err")]
            streams = [stack.enter_context(path.open("xb")) for path in logs]
            self.process = subprocess.Popen(
                ["/bin/bash", run / "job.sh"],
                stdin=subprocess.DEVNULL,
                stdout=streams[0],
                stderr=streams[1],
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def follow(self) -> None:
        """Wait until the job ends, its time is over or we are told to stop."""
        while self.status is None and not self.cancelled:
            if time.monotonic() > self.deadline:
                self.timed_out = True
                self.hung = self._without_exit()
                break
            self._reap()
            readable, _, _ = select.select([0], [], [], POLL_S)
            if readable and not os.read(0, 1):
                self.cancelled = True

    def end(self) -> bool:
        """End every process that is left; true when none is."""
        if self.status is not None and not self.cancelled:
            self._wait(LEFT_BEHIND_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = _descendants(os.getpid())
            if not left:
                break
            self._note(f"{signal.Signals(number).name} to {len(left)} process(es) of the job: {left[:20]}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._wait(GRACE_S, again=number is signal.SIGKILL)
        return not self._reap()

    def write_exits(self) -> None:
        """Complete ``exit/``: a rank without a file was killed; one there at the time limit hung."""
        for rank in range(self.ranks):
            path = self.run / "exit" / f"rank-{rank:05d}.json"
            record = self._missing_exit(rank) if not path.is_file() else {}
            if self.timed_out and (record or rank in self.hung):
                record = record or json.loads(path.read_text(encoding="utf-8"))
                record["timed_out"] = True
            if record:
                temporary = path.with_suffix(".part")
                temporary.write_text(json.dumps(record), encoding="utf-8")
                temporary.rename(path)

    def _missing_exit(self, rank: int) -> dict[str, Any]:
        """What is known of a rank without an exit file; of a lone one the launcher tells code or signal."""
        alone = self.ranks == 1 and self.status is not None
        code = os.waitstatus_to_exitcode(self.status) if alone and self.status is not None else None
        return {
            "rank": rank,
            "code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "timed_out": False,
            "host": os.uname().nodename,
            "started": self.started,
            "ended": _now(),
            "stopped": False,
            "reason": "no exit file: the rank was killed, or did not start",
        }

    def _without_exit(self) -> set[int]:
        return {
            rank for rank in range(self.ranks) if not (self.run / "exit" / f"rank-{rank:05d}.json").is_file()
        }

    def _stop(self, *_: object) -> None:
        self.cancelled = True

    def _wait(self, seconds: float, *, again: bool = False) -> None:
        """Wait until no child is left; ``again`` kills what was started meanwhile."""
        until = time.monotonic() + seconds
        while self._reap() and time.monotonic() < until:
            time.sleep(POLL_S)
            for pid in _descendants(os.getpid()) if again else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Collect ended children, adopted ones included; true while one runs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.process.pid:
                self.status = self.process.returncode = status

    def _note(self, text: str) -> None:
        with (self.run / "logs" / "supervisor.log").open("a", encoding="utf-8") as file:
            file.write(f"{_now()} {text}\n")


def _descendants(root: int) -> list[int]:
    """Every process below ``root``, from the parent ids in /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    parents[int(entry.name)] = int(fields[1])
    found: list[int] = []
    level = {root}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += sorted(level)
    return found


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def main() -> int:
    """Run the job of the named run folder."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no subreapers")
    supervisor = Supervisor(Path(sys.argv[1]), float(sys.argv[2]))
    supervisor.follow()
    if not supervisor.end():
        return NOT_GONE
    supervisor.write_exits()
    return 0


if __name__ == "__main__":
    sys.exit(main())
