"""The system call filter: its numbers against the kernel's headers, its program played as the kernel does."""

import errno
import re
import struct
from pathlib import Path

import pytest

from plumbline_mcp.engines.confinement import system_calls

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, KILLED, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
CLONE_THREAD = 0x10000
NEWER = {"fchmodat2", "setxattrat", "removexattrat", "memfd_secret"}
"""Younger than the headers may be."""


def numbers(machine: str) -> dict[str, int]:
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    text = HEADERS[machine].read_text()
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)\s", text)}


def played(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """What the program answers of one call: Berkeley packet filter, the six instructions that it uses."""
    code = [struct.unpack("=HBBI", part) for part in _eights(system_calls.program(machine))]
    given = ARCHITECTURE[machine] if architecture is None else architecture
    data = {0: number, 4: given, 16: argument & 0xFFFFFFFF}
    at = value = 0
    while True:
        what, yes, no, k = code[at]
        at += 1
        if what == 0x20:
            value = data[k]
        elif what == 0x06:
            return k
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[what]
            at += yes if holds else no


def _eights(data: bytes) -> list[bytes]:
    return [data[at : at + 8] for at in range(0, len(data), 8)]


@pytest.mark.parametrize("machine", HEADERS)
def test_every_number_is_the_kernels(machine: str) -> None:
    known = numbers(machine)
    _, refused, clone, limits = system_calls._MACHINES[machine]
    named = refused | system_calls._EVERYWHERE | {"clone": clone, "prlimit64": limits}
    for name, number in {**named, "clone3": system_calls._CLONE3}.items():
        if name in known:
            assert known[name] == number, name
        else:
            assert name in NEWER, name


@pytest.mark.parametrize("machine", HEADERS)
def test_the_program_refuses_those_alone(machine: str) -> None:
    known = numbers(machine)
    _, refused, _, _ = system_calls._MACHINES[machine]
    names = refused.keys() | system_calls._EVERYWHERE.keys() | {"clone", "clone3", "prlimit64"}
    for name, number in known.items():
        if name not in names:
            assert played(machine, number) == ALLOWED, name
        elif name not in ("clone", "clone3", "prlimit64"):
            assert played(machine, number) == EPERM, name
    assert played(machine, known["clone3"]) == ENOSYS
    assert played(machine, known["clone"], CLONE_THREAD | 0xFF) == ALLOWED
    assert played(machine, known["clone"], 17) == EPERM
    assert played(machine, known["prlimit64"], 0) == ALLOWED
    assert played(machine, known["prlimit64"], 1) == EPERM
    assert played(machine, known["read"], architecture=0x40000003) == KILLED
    assert played(machine, 0x40000000 | known["read"]) == EPERM


@pytest.mark.parametrize("machine", HEADERS)
def test_what_makes_processes_or_reaches_others_is_among_them(machine: str) -> None:
    _, refused, _, _ = system_calls._MACHINES[machine]
    reaching = {"execve", "execveat", "socket", "kill", "ptrace", "unshare", "fchmodat", "memfd_create"}
    assert reaching <= refused.keys()
    assert machine != "x86_64" or {"fork", "vfork"} <= refused.keys()
