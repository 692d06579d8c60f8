"""Runs one job and outlives whoever started it: ``python -I -m ...local.supervisor RUN CONFINEMENT SLOTS``.

A process of its own, in a session of its own, which holds the run's lock from its submission to its end. It
is the *subreaper* of the job: a process that the job put into another session still becomes its child and is
ended before the run counts as over. It waits for a place, starts the job confined, ends it at its time
limit, on a request (`plumbline_mcp.engines.local.files`), on SIGTERM and when it takes too much disk; then it
completes the exit files, seals the run and logs the digest of its manifest. When it is killed, the job dies
with it; what escaped is ended by the next sweep. Standard library only until the job is over.
"""

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline_mcp.engines.confinement.choosing import confined
from plumbline_mcp.engines.confinement.reach import reach
from plumbline_mcp.engines.local import exits, space, writing
from plumbline_mcp.engines.local.files import (
    GRACE_S,
    QUEUED,
    READING,
    RUNNING,
    Cancel,
    RunFiles,
    Supervision,
    take_slot,
)
from plumbline_mcp.engines.local.input_digests import InputDigests
from plumbline_mcp.engines.local.launcher_log import LauncherLog
from plumbline_mcp.engines.local.processes import Process, boot_id, descendants, kill_group, process, send
from plumbline_mcp.engines.local.starting import started

POLL_S = 0.05
KILL_S = 15.0
"""How long processes are killed until the run counts as one that cannot be ended."""
LEFT_BEHIND_S = 2.0
"""How long what a job leaves behind may still run by itself."""
LOOK_S = 1.0
"""How often the job's processes are noted."""
MEASURE_S = 2.0
"""How often the run folder is measured, at least; a measurement may take a twentieth of the time."""

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Supervisor:
    """One job, its descendants and what became of them."""

    def __init__(self, run: Path, confinement: str, slots: int) -> None:
        self.run, self.confinement, self.slots = run, confinement, slots
        self.files = RunFiles(run)
        self.job: dict[str, Any] = json.loads((run / "job.json").read_text(encoding="utf-8"))
        self.end = exits.JobEnd(started=_now(), limit_s=float(self.job["time_limit_s"]))
        self.request: Cancel | None = None
        self.launcher: subprocess.Popen[bytes] | None = None
        self.logs: list[LauncherLog] = []
        self.inputs = InputDigests(run.parent.parent, self.job, self._cancelled)
        self._terminated = False
        self._looked = self._measured = self._measuring_s = 0.0
        self._seen: set[Process] = set()
        signal.signal(signal.SIGTERM, self._terminate)
        self._write_state(QUEUED)

    def wait_for_place(self) -> bool:
        """Wait until a place is free; false when the job was cancelled before."""
        while not self._cancelled():
            if take_slot(self.run.parent.parent, self.slots) is not None:
                return True
            time.sleep(POLL_S)
        return False

    def inputs_hold(self) -> bool:
        """Whether the inputs are those that were approved; what else they are, `inputs` says."""
        self._write_state(READING)
        return self.inputs.hold()

    def start(self) -> None:
        """Start the job. Raises `OSError` and `subprocess.SubprocessError`."""
        inputs = [Path(path) for path in self.job["inputs"].values()]
        allowed = lambda: reach(self.run, Path(self.job["interpreter"]), inputs)  # noqa: E731 - asked when it is used
        command = confined(self.confinement, self.run, allowed, ["/bin/bash", str(self.run / "job.sh")])
        self.end.started = _now()
        limit = int(self.job["log_bytes"])
        self.logs = [LauncherLog(self.run / "logs" / f"launcher.{end}", limit) for end in ("out", "err")]
        try:
            self.launcher = started(command, *(log.writing for log in self.logs))
        finally:
            for log in self.logs:
                os.close(log.writing)
        began, cap_s = time.monotonic(), float(self.job.get("cap_s") or 0)
        self._deadline = began + self.end.limit_s
        self._capped = began + cap_s if cap_s else math.inf
        self._look()

    def follow(self) -> None:
        """Wait until the job ends, its time or its disk is used up or we are told to stop."""
        while self.end.status is None and not self._cancelled():
            self._reap()
            now = time.monotonic()
            exits.look(self.run, self.job["world_size"], self.end, now)
            if now > self._deadline:
                self.end.timed_out = True
                self.end.hung = exits.without_exit(self.run, self.job["world_size"])
                return
            if now > self._capped:
                self.request = Cancel("the node-hours of its task are used up")
            if now > self._looked + LOOK_S:
                self._look()
            if now > self._measured + max(MEASURE_S, 20 * self._measuring_s):
                self._measure()
            time.sleep(POLL_S)

    def end_processes(self) -> bool:
        """End every process that is left; true when none is."""
        if self.end.status is not None and self.request is None:
            self._wait(lambda: LEFT_BEHIND_S)
        if left := descendants(os.getpid()):
            self._note(f"SIGTERM to {len(left)} process(es): {[one.pid for one in left[:20]]}")
            for one in left:
                send(one, signal.SIGTERM)
            self._wait(self._grace)
        if self._reap():  # a look at all processes can miss what forks and exits; a wait for children cannot
            left = descendants(os.getpid())
            self._note(f"SIGKILL to {len(left)} process(es): {[one.pid for one in left[:20]]}")
            self._kill()
        self.end.ended = _now()
        self.end.cancelled = self.request.reason if self.request else ""
        return not self._reap()

    def _cancelled(self) -> bool:
        if self.request is None:
            self.request = self.files.cancelled()
        if self.request is None and self._terminated:
            self.request = Cancel("cancelled: the supervisor was told to end (SIGTERM)")
        return self.request is not None

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _wait(self, seconds: Callable[[], float]) -> None:
        """Wait until no child is left, so long as it may take now."""
        began = time.monotonic()
        while self._reap() and time.monotonic() < began + seconds():
            time.sleep(POLL_S)

    def _grace(self) -> float:
        """As it was asked for; a second request may shorten it while we wait."""
        wanted = self.files.cancelled() or self.request
        return GRACE_S if wanted is None else wanted.seconds

    def _kill(self) -> None:
        """Kill whole process groups until no child is left: what was started meanwhile too, and what is
        faster than a look at all processes. One whose parent died is our child at once."""
        until = time.monotonic() + KILL_S
        while self._reap() and time.monotonic() < until:
            for one in descendants(os.getpid()):
                kill_group(one)
            soon = time.monotonic() + POLL_S
            while self._reap() and time.monotonic() < soon:
                for pid in _children():  # not waited for yet: neither its number nor its group's is another's
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        if (group := os.getpgid(pid)) != os.getpgrp():
                            os.killpg(group, signal.SIGKILL)

    def _reap(self) -> bool:
        """Collect ended children, adopted ones included; true while one runs."""
        for log in self.logs:
            log.pump()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self.launcher is not None and pid == self.launcher.pid:
                self.end.status = self.launcher.returncode = status

    def _look(self) -> None:
        """Note the job's processes: one that hides its environment is still found after we were killed."""
        self._looked = time.monotonic()
        seen = set(descendants(os.getpid()))
        if seen != self._seen:
            self._seen = seen
            self._write_state(RUNNING)

    def _measure(self) -> None:
        began = time.monotonic()
        limit = self.job.get("disk_bytes") or 0
        size = space.taken(self.run) if limit else 0
        self._measured = time.monotonic()
        self._measuring_s = self._measured - began
        if size > limit:
            self.request = Cancel(f"the run took {size:,} bytes of disk; its limit is {limit:,}")

    def _write_state(self, phase: str) -> None:
        us = process(os.getpid())
        if us is not None:
            with contextlib.suppress(OSError):  # a full disk: the job's end says so
                known = Supervision(us, boot_id(), phase, self.end.started, _sorted(self._seen))
                self.files.write_supervision(known)

    def _note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            writing.append(self.run / "logs" / "supervisor.log", f"{_now()} {text}\n".encode())


def _sorted(processes: set[Process]) -> tuple[Process, ...]:
    return tuple(sorted(processes, key=lambda one: one.pid))


def _children() -> list[int]:
    """Our own children. None takes the pid of another one before we have waited for that."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def supervise(run: Path, confinement: str, slots: int) -> None:
    """Run the job of a run folder to its end, and store that end."""
    supervisor = Supervisor(run, confinement, slots)
    reason = ""
    try:
        if supervisor.wait_for_place() and supervisor.inputs_hold():
            supervisor.start()
            supervisor.follow()
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the job is ended and its run says why
        reason = f"its supervisor could not run it: {type(error).__name__}: {error}"
    gone = supervisor.end_processes()
    for log in supervisor.logs:
        log.close()
    from plumbline_mcp.engines.local import ending  # the database takes half a second to import

    if not gone:
        ending.lose(run, "a process of the job could not be ended, so nothing was sealed")
    elif reason:
        ending.lose(run, reason)
    elif supervisor.inputs.changed:
        ending.remove(run, supervisor.inputs.changed)
    elif supervisor.launcher is None:
        ending.remove(run, f"{supervisor.end.cancelled}, before it started")
    elif supervisor.request is not None and supervisor.request.remove:
        ending.remove(run, supervisor.end.cancelled)
    else:
        ending.seal_or_lose(run, supervisor.job, supervisor.end, confinement, supervisor.inputs)
    supervisor.files.remove()


def main() -> None:
    """Go into the background and supervise; the first process ends when the second one has the lock."""
    if os.fork():
        os._exit(0)
    os.chdir("/")
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no subreapers")
    supervise(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
