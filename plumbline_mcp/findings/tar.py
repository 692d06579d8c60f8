"""A plain tar of regular files, in one spelling: the same files are the same bytes, and nothing else is read.

Only the POSIX ``ustar`` header is known, with fixed owner, mode and time. Reading writes the header that
a name and a size have to have and compares the bytes, so that links, devices, other flags, absolute
names, names with ``..`` and any changed byte of a header or of padding are refused. Nothing is ever
unpacked to disk.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from plumbline_mcp.errors import PlumblineError

_BLOCK = 512
_END = 2 * _BLOCK
_CHUNK = 2**20
MAX_FILES = 100_000
MAX_FILE_BYTES = 8 * 2**30 - 1
_NAME = re.compile(r"[A-Za-z0-9@+=,_-][A-Za-z0-9@+=,._-]*(?:/[A-Za-z0-9@+=,_-][A-Za-z0-9@+=,._-]*)*")


class EvidenceRefused(PlumblineError):
    """Raised when an evidence archive does not hold: it was changed, or proves something else."""


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    name: str
    size: int
    offset: int


def fits(name: str, size: int) -> bool:
    """Whether a file can be put into an archive under this name."""
    return bool(_NAME.fullmatch(name)) and _split(name) is not None and size <= MAX_FILE_BYTES


def write(target: IO[bytes], files: Iterable[tuple[str, bytes | Path]]) -> None:
    """Write files in the order given. A file on disk is opened without following a link."""
    for name, source in files:
        if isinstance(source, bytes):
            _add(target, name, len(source), iter((source,)))
        else:
            descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                _add(target, name, os.fstat(descriptor).st_size, iter(lambda: file.read(_CHUNK), b""))
    target.write(b"\0" * _END)


def members(file: IO[bytes]) -> list[Member]:
    """Every file of an archive, in its order. Raises `EvidenceRefused` for anything but the one spelling."""
    total = file.seek(0, os.SEEK_END)
    found: list[Member] = []
    offset = 0
    while True:
        file.seek(offset)
        block = file.read(_BLOCK)
        if block == b"\0" * _BLOCK:
            _refuse_more(file, offset, total)
            return found
        member = _member(block, offset + _BLOCK)
        padded = member.offset + member.size + -member.size % _BLOCK
        if padded + _END > total:
            raise EvidenceRefused(f"the archive ends within {member.name}", "fetch it again")
        file.seek(member.offset + member.size)
        if any(file.read(padded - member.offset - member.size)):
            raise EvidenceRefused(f"something is hidden behind {member.name}", "fetch it again")
        found.append(member)
        offset = padded
        if len(found) > MAX_FILES:
            raise EvidenceRefused(f"the archive holds more than {MAX_FILES} files", "this is none of ours")


def chunks(file: IO[bytes], member: Member) -> Iterator[bytes]:
    """The content of a file, in pieces."""
    file.seek(member.offset)
    left = member.size
    while left:
        chunk = file.read(min(_CHUNK, left))
        if not chunk:
            raise EvidenceRefused(f"the archive ends within {member.name}", "fetch it again")
        left -= len(chunk)
        yield chunk


def content(file: IO[bytes], member: Member, limit: int) -> bytes:
    """A file as a whole. Raises `EvidenceRefused` for one above the limit (bytes)."""
    if member.size > limit:
        raise EvidenceRefused(f"{member.name} is larger than {limit} bytes", "this is no archive of ours")
    return b"".join(chunks(file, member))


def sha256(file: IO[bytes], member: Member) -> str:
    """Digest of a file."""
    digest = hashlib.sha256()
    for chunk in chunks(file, member):
        digest.update(chunk)
    return digest.hexdigest()


def _add(target: IO[bytes], name: str, size: int, pieces: Iterator[bytes]) -> None:
    target.write(_header(name, size))
    written = 0
    for piece in pieces:
        written += len(piece)
        target.write(piece)
    if written != size:
        raise EvidenceRefused(f"{name} changed while it was packed", "repeat the export")
    target.write(b"\0" * (-size % _BLOCK))


def _member(block: bytes, offset: int) -> Member:
    """The file that a header says, when it is the header that we would write for it."""
    try:
        name, prefix = (_text(block[:100]), _text(block[345:500]))
        whole = f"{prefix}/{name}" if prefix else name
        size = int(block[124:135], 8)
        expected = _header(whole, size)
    except (ValueError, IndexError) as error:
        raise EvidenceRefused(
            f"no file of ours begins at byte {offset - _BLOCK}", "fetch it again"
        ) from error
    if expected != block:
        raise EvidenceRefused(
            f"the entry at byte {offset - _BLOCK} is no plain file in our spelling", "fetch it again"
        )
    return Member(whole, size, offset)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("ascii")


def _header(name: str, size: int) -> bytes:
    """A ustar header. Raises `ValueError` for a name or a size that does not fit."""
    parts = _split(name)
    if parts is None or not _NAME.fullmatch(name) or not 0 <= size <= MAX_FILE_BYTES:
        raise ValueError(name)
    prefix, last = parts
    fields = (
        last.encode().ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size + b"00000000000\0",
        b" " * 8,
        b"0" + b"\0" * 100,
        b"ustar\x0000" + b"\0" * 64,
        b"0000000\0" * 2,
        prefix.encode().ljust(155, b"\0"),
        b"\0" * 12,
    )
    header = b"".join(fields)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _split(name: str) -> tuple[str, str] | None:
    """Prefix and name as ustar has them: the shortest prefix that leaves at most 100 characters."""
    if len(name) <= 100:
        return "", name
    cuts = (at for at, letter in enumerate(name) if letter == "/" and len(name) - at - 1 <= 100)
    cut = next(cuts, None)
    return None if cut is None or cut > 155 else (name[:cut], name[cut + 1 :])


def _refuse_more(file: IO[bytes], offset: int, total: int) -> None:
    file.seek(offset)
    if total != offset + _END or any(file.read(_END)):
        raise EvidenceRefused("something follows the end of the archive", "fetch it again")
