"""Gives up what root may do beyond what files of its own allow, for good.

A job of root would else read the memory of processes outside its sandbox (CAP_PERFMON is asked before the
sandbox is), trace, mount and change the network. Numbers: ``linux/capability.h``, ``linux/prctl.h``,
``linux/securebits.h``.
"""

import ctypes
import errno
import itertools
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

_VERSION_3 = 0x20080522
_SETPCAP = 8
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 28, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_MOST = 64
"""Capabilities are bits of two words; the kernel refuses the first one that it does not know."""
_ROOT_IS_NOBODY = 0b1100_0011
"""Root gets nothing when it executes a program, nor from its ambient set; both are locked."""
_MOST_LOOKED_AT = 20_000

_LIBC = ctypes.CDLL(None, use_errno=True)


def give_up() -> None:
    """Empty every set of this process, also for what it executes. Raises `OSError`.

    Without privileges there is no bounding set to empty: ``no_new_privs`` keeps it from giving anything.
    """
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    effective, _, _ = _held()
    if effective >> _SETPCAP & 1:
        for number in range(_MOST):
            if _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
                if ctypes.get_errno() == errno.EINVAL and number:
                    break
                _check(-1, "PR_CAPBSET_DROP")
        _check(_LIBC.prctl(_PR_SET_SECUREBITS, _ROOT_IS_NOBODY, 0, 0, 0), "PR_SET_SECUREBITS")
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "PR_CAP_AMBIENT_CLEAR_ALL")
    _hold(0, 0, 0)


def out_of_reach(searched: list[Path], looked_into: list[Path]) -> str | None:
    """Which of root's inputs need a capability to be read, as a sentence; None when none does.

    ``looked_into`` are folders whose entries count, ``searched`` those of which all that lies below counts.
    """
    if os.geteuid() != 0:
        return None
    found: list[Path] = []
    seeker = threading.Thread(target=_seek, args=(searched, looked_into, found))
    seeker.start()
    seeker.join()
    return _sentence(found[0]) if found else None


def _seek(searched: list[Path], looked_into: list[Path], found: list[Path]) -> None:
    """Look without the capabilities: the kernel keeps them by thread, and this one ends."""
    effective, permitted, inheritable = _held()
    _hold(effective & ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH), permitted, inheritable)
    entries = itertools.chain(
        *(_below(path, deep=True) for path in searched), *(_below(path, deep=False) for path in looked_into)
    )
    for path in itertools.islice(entries, _MOST_LOOKED_AT):
        wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
        if not os.access(path, wanted, effective_ids=True) and os.path.lexists(path):
            found.append(path)
            return


def _below(path: Path, *, deep: bool) -> Iterator[Path]:
    yield path
    for place, folders, files in os.walk(path):
        yield from (Path(place, name) for name in (*folders, *files) if not Path(place, name).is_symlink())
        if not deep:
            return


def _sentence(path: Path) -> str:
    while not os.access(path.parent, os.X_OK):
        path = path.parent
    return f"root has no right to read {path} but by a capability, and a held job has none"


def _held() -> tuple[int, int, int]:
    """Effective, permitted and inheritable set of this thread, as bits."""
    data = ctypes.create_string_buffer(24)
    _check(_LIBC.capget(struct.pack("=Ii", _VERSION_3, 0), data), "capget")
    low = struct.unpack("=6I", data.raw)
    effective, permitted, inheritable = (low[at] | low[at + 3] << 32 for at in range(3))
    return effective, permitted, inheritable


def _hold(effective: int, permitted: int, inheritable: int) -> None:
    sets = (effective, permitted, inheritable)
    words = [one >> shift & 0xFFFFFFFF for shift in (0, 32) for one in sets]
    _check(_LIBC.capset(struct.pack("=Ii", _VERSION_3, 0), struct.pack("=6I", *words)), "capset")


def _check(answer: int, what: str) -> None:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
