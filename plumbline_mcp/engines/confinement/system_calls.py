"""A system call filter (seccomp) for a program that only computes: no processes, no network, no signals.

It takes what the file sandbox leaves: the network, sockets on disk, processes and their number, modes and
times of files, priority and limits of other processes, shared memory that no limit counts. Numbers: the
kernel's ``syscall_64.tbl`` and ``asm-generic/unistd.h``; values: ``linux/filter.h``, ``linux/seccomp.h``.
"""

import ctypes
import errno
import os
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_CLONE_THREAD = 0x00010000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2

_EVERYWHERE = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
}
_X86_64 = {
    "fork": 57,
    "vfork": 58,
    "execve": 59,
    "execveat": 322,
    "ptrace": 101,
    "kill": 62,
    "tkill": 200,
    "tgkill": 234,
    "rt_sigqueueinfo": 129,
    "rt_tgsigqueueinfo": 297,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "socket": 41,
    "connect": 42,
    "bind": 49,
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "open_by_handle_at": 304,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "memfd_create": 319,
    "shmget": 29,
    "msgget": 68,
    "semget": 64,
    "mq_open": 240,
    "setpriority": 141,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "sched_setaffinity": 203,
    "sched_setattr": 314,
    "ioprio_set": 251,
    "chmod": 90,
    "fchmod": 91,
    "chown": 92,
    "fchown": 93,
    "lchown": 94,
    "fchownat": 260,
    "fchmodat": 268,
    "utime": 132,
    "utimes": 235,
    "futimesat": 261,
    "utimensat": 280,
    "setxattr": 188,
    "lsetxattr": 189,
    "fsetxattr": 190,
    "removexattr": 197,
    "lremovexattr": 198,
    "fremovexattr": 199,
}
_AARCH64 = {
    "execve": 221,
    "execveat": 281,
    "ptrace": 117,
    "kill": 129,
    "tkill": 130,
    "tgkill": 131,
    "rt_sigqueueinfo": 138,
    "rt_tgsigqueueinfo": 240,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "socket": 198,
    "connect": 203,
    "bind": 200,
    "unshare": 97,
    "setns": 268,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "open_by_handle_at": 265,
    "bpf": 280,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "memfd_create": 279,
    "shmget": 194,
    "msgget": 186,
    "semget": 190,
    "mq_open": 180,
    "setpriority": 140,
    "sched_setparam": 118,
    "sched_setscheduler": 119,
    "sched_setaffinity": 122,
    "sched_setattr": 274,
    "ioprio_set": 30,
    "fchmod": 52,
    "fchmodat": 53,
    "fchownat": 54,
    "fchown": 55,
    "utimensat": 88,
    "setxattr": 5,
    "lsetxattr": 6,
    "fsetxattr": 7,
    "removexattr": 14,
    "lremovexattr": 15,
    "fremovexattr": 16,
}
_CLONE3 = 435
_MACHINES = {
    # machine: (AUDIT_ARCH of linux/audit.h, refused calls, clone, prlimit64)
    "x86_64": (0xC000003E, _X86_64, 56, 302),
    "aarch64": (0xC00000B7, _AARCH64, 220, 261),
}

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def unavailable() -> str | None:
    """Why it cannot be used here; None when it can."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return f"the numbers of system calls of {machine} are not known here"
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 - stdlib only
            there = "Seccomp:" in status.read()
    except OSError:
        there = False
    return None if there else "this kernel has no system call filters"


def refuse() -> None:
    """Refuse them from now on, for this process and its threads, for good. Raises `OSError`.

    A refused call fails with EPERM. Threads can still be started.
    """
    code = program(platform.machine())
    held = _Program(len(code) // 8, code)
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_LIBC.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(held), 0, 0), "PR_SET_SECCOMP")


def program(machine: str) -> bytes:
    """The filter: eight bytes an instruction. Raises `KeyError` for a machine that is not known."""
    architecture, refused, clone, limits = _MACHINES[machine]
    no = _ERRNO | errno.EPERM
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),  # the same calls under other numbers
        (_RETURN, 0, 0, no),
        (_EQUAL, 0, 1, _CLONE3),  # its flags lie in memory: the C library then takes clone
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number in sorted({*refused.values(), *_EVERYWHERE.values()}):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, no)]
    lines += [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 4, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, no),
        (_EQUAL, 0, 2, limits),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 0, 1, 0),  # only of itself
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, no),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _check(answer: int, what: str) -> None:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
