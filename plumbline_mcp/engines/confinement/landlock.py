"""Landlock: the kernel's own sandbox, without root and without an install (Linux 5.13 and newer).

The numbers are those of ``linux/landlock.h``; what the running kernel does not know is left out, and said.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from plumbline_mcp.engines.confinement import capabilities
from plumbline_mcp.engines.confinement.reach import Reach

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SINCE = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
"""File rights by the version of the interface that brought them."""
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_READ = EXECUTE | READ_FILE | READ_DIR
_SCOPED_SINCE, _SCOPED = 6, 0b11
"""Abstract sockets and signals stay inside."""

_NEVER_HELD = (
    "network, shared /dev/shm, file modes and times, sockets on disk, names of processes, "
    "priority, limits and processors of processes of the same user"
)
_MISSING = {2: "links between folders", 3: "truncation", 5: "device controls", 6: "signals, abstract sockets"}

_LIBC = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The version of the kernel's interface; 0 where there is none."""
    found: int = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(found, 0)


def unavailable() -> str | None:
    """Why it cannot be used here; None when it can."""
    return None if version() else "this kernel has no landlock, or it is switched off"


def _readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def not_held() -> str:
    """What a job can reach all the same."""
    known = version()
    return ", ".join([_NEVER_HELD, *(what for since, what in _MISSING.items() if known < since)])


def prepared(reach: Reach, memory_files: bool = True) -> Callable[[], None]:
    """What the child calls before it executes the job: it and all that it starts are held from then on.

    It may read /proc: frameworks look there for what they are. The kernel shows it no environment and no
    memory of a process outside, and we make sure of that before the job begins. The rules are made here, so
    that a mistake is met here. Raises `OSError`. ``memory_files``: its processes may use /dev/shm.
    """
    ruleset, ours = _ruleset(), Path(f"/proc/{os.getpid()}/environ")

    def apply() -> None:
        capabilities.give_up()
        _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "landlock_restrict_self")
        if _readable(ours):
            raise OSError(f"landlock lets a job read {ours}, the environment of a process outside it")

    everything = rights()
    for path in reach.reads:
        _allow(ruleset, path, _READ)
    shared = [Path("/dev/shm")] if memory_files else []  # noqa: S108 - shared memory of the job's processes
    for path in (*reach.writes, *shared):
        _allow(ruleset, path, everything)
    _allow(ruleset, Path("/proc"), READ_FILE | READ_DIR)
    for path in reach.devices:
        _allow(ruleset, path, READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL_DEV)
    return apply


def rights() -> int:
    """Every file right that this kernel can handle."""
    known = version()
    return sum(right for since, right in _SINCE.items() if known >= since)


def _ruleset() -> int:
    scoped = _SCOPED if version() >= _SCOPED_SINCE else 0
    size = 24 if scoped else 8  # older kernels refuse a longer structure unless the rest is zero
    attributes = struct.pack("=QQQ", rights(), 0, scoped)[:size]
    return _check(
        _LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0)),
        "landlock_create_ruleset",
    )


def _allow(ruleset: int, path: Path, wanted: int) -> None:
    """Allow rights at a path and below; a path that went meanwhile needs none."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            wanted &= _OF_FILES
        rule = struct.pack("=Qi", wanted & rights(), descriptor)
        answer = _LIBC.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, ctypes.c_uint32(0))
        _check(answer, f"landlock_add_rule for {path}")
    finally:
        os.close(descriptor)


def _check(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer
