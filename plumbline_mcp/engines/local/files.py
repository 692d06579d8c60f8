"""The engine's own files beside a run folder, where the job cannot write them. Standard library only.

runs/.<run>.lock      held (flock) by whoever submits the run, then by its supervisor, to the end
runs/.<run>.state     the supervisor's pid, start time and boot, its phase, the processes it knows
runs/.<run>.cancel    asks the supervisor for the end of the job
.slots                a byte of it is held (lockf) by each supervisor whose job runs: so many run at once
"""

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from plumbline_mcp.engines import temporary_folder
from plumbline_mcp.engines.local.processes import Process, boot_id

QUEUED = "queued"
READING = "reading"
"""It has its place, and the inputs that were approved are read before it starts."""
RUNNING = "running"
GRACE_S = 3.0
"""How long processes have after SIGTERM, if nobody says otherwise."""


@dataclass(frozen=True)
class Supervision:
    """Who supervises a run, how far it is, and the processes of the job that were seen."""

    supervisor: Process
    boot: str
    phase: str
    since: str
    processes: tuple[Process, ...] = ()

    def alive(self) -> bool:
        """Whether that supervisor still runs, in this boot of the machine."""
        return self.boot == boot_id() and self.supervisor.alive()

    def left(self) -> tuple[Process, ...]:
        """The processes of the job that were seen, as far as they can still be meant."""
        return self.processes if self.boot == boot_id() else ()


@dataclass(frozen=True)
class Cancel:
    """A request to end a job: its reason, whether its run is removed, how long processes have."""

    reason: str
    remove: bool = False
    grace_s: float | None = None

    @property
    def seconds(self) -> float:
        """How long processes have between SIGTERM and SIGKILL."""
        return GRACE_S if self.grace_s is None else self.grace_s


class RunFiles:
    """The files of one run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.lock = run.with_name(f".{run.name}.lock")
        self.state = run.with_name(f".{run.name}.state")
        self.cancel = run.with_name(f".{run.name}.cancel")

    def take_lock(self, create: int = os.O_CREAT) -> int | None:
        """A descriptor that holds the run's lock until it is closed; None when another one does."""
        descriptor = os.open(self.lock, os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def held(self) -> bool:
        """Whether somebody submits or supervises the run now."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = self.take_lock(create=0)
            if descriptor is None:
                return True
            os.close(descriptor)
        return self._supervised()

    def _supervised(self) -> bool:
        known = self.supervision()
        return known is not None and known.alive()

    def supervision(self) -> Supervision | None:
        """What the supervisor wrote last; None before it wrote anything, and for a file that is not its."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            raw = json.loads(self.state.read_text(encoding="utf-8"))
            seen = tuple(Process(*map(int, one.values())) for one in raw.pop("processes"))
            return Supervision(Process(**raw.pop("supervisor")), processes=seen, **raw)
        return None

    def write_supervision(self, known: Supervision) -> None:
        """Replace what the supervisor says of itself."""
        _write(self.state, asdict(known))

    def request_cancel(self, wanted: Cancel) -> None:
        """Ask for the end; the first request counts, also of two at once. A later one may only be more
        impatient: nobody has to wait for what another one granted."""
        asked = self.cancelled()
        if asked is not None:
            if wanted.seconds < asked.seconds:
                _write(self.cancel, asdict(replace(asked, grace_s=wanted.grace_s)))
            return
        part = _part(self.cancel, asdict(wanted))
        try:
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # asked before, or over meanwhile
                os.link(part, self.cancel)
        finally:
            part.unlink(missing_ok=True)

    def cancelled(self) -> Cancel | None:
        """The request to end the job, if there is one."""
        try:
            return Cancel(**json.loads(self.cancel.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            return Cancel("cancelled")

    def remove(self) -> None:
        """Remove them and the link below /tmp; the lock goes last: nobody takes the run for dead before."""
        temporary_folder.unlink(self.run)
        parts = [
            part for path in (self.state, self.cancel) for part in path.parent.glob(f"{path.name}.*.part")
        ]
        ours = (*parts, self.state, self.cancel, self.lock, self.cancel)  # asked for meanwhile: also the last
        for path in ours:
            path.unlink(missing_ok=True)


def take_slot(home: Path, slots: int) -> int | None:
    """A descriptor that holds one of the places for running jobs; None when all are taken.

    The lock is this process's own: nothing that it starts holds it on.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(home / ".slots", flags, 0o600)
    for number in range(slots):
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            return descriptor
    os.close(descriptor)
    return None


def _write(path: Path, content: object) -> None:
    _part(path, content).replace(path)


def _part(path: Path, content: object) -> Path:
    """The content in a file beside the path that nobody else writes."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    return part
