"""One tensor on disk or in memory, read in pieces: a 20 GB checkpoint never comes into memory whole."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from checks.references.checkpoints.formats import FORMATS, Codes, Format
from checks.references.checkpoints.header import Unreadable, open_regular

PIECE = 2**20
"""Bytes read at a time: two pieces and their temporaries stay in a core's cache."""


class Source(Protocol):
    """Where a tensor's bytes are."""

    def reading(self) -> "AbstractContextManager[Reader]":
        """Open the bytes for reading."""


class Reader(Protocol):
    """Fills a buffer from an offset in the tensor."""

    def __call__(self, buffer: Codes, offset: int) -> None: ...  # noqa: D102 - the class says it


@dataclass(frozen=True)
class FileSource:
    """Bytes of a file from ``begin``, read with ``pread``: a file cut short is an error, no SIGBUS."""

    path: Path
    begin: int

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open the file; the reader raises `Unreadable` where the file ends early."""
        with open_regular(self.path) as file:

            def read(buffer: Codes, offset: int) -> None:
                view, done = memoryview(buffer.data).cast("B"), 0
                while done < len(view):
                    got = os.preadv(file.fileno(), [view[done:]], self.begin + offset + done)
                    if got == 0:
                        raise Unreadable(self.path.name, "ended while it was read")
                    done += got

            yield read


@dataclass(frozen=True)
class MemorySource:
    """Bytes held in memory: what an injected fault puts in a tensor's place."""

    data: bytes

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Copy from the bytes."""

        def read(buffer: Codes, offset: int) -> None:
            view = memoryview(buffer.data).cast("B")
            view[:] = self.data[offset : offset + len(view)]

        yield read


@dataclass(frozen=True)
class Tensor:
    """A named tensor; ``file`` is the shard's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Source
    file: str = ""

    @property
    def format(self) -> Format:
        """The number format of the elements."""
        return FORMATS[self.dtype]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object)) if self.shape else 1

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.size * self.format.bits // 8

    def codes(self, first: int = 0, last: int | None = None) -> Codes:
        """Codes of elements ``first`` to ``last``, row-major, [last - first]. Whole-byte formats only."""
        width = self.format.bits // 8
        last = self.size if last is None else last
        buffer = np.empty(last - first, dtype=self.format.code)
        with self.source.reading() as read:
            read(buffer, first * width)
        return buffer

    def digest(self) -> str:
        """The state digest of the tensor (see `state_digest`), streamed."""
        digest = _begin(self.dtype, self.shape)
        buffer = np.empty(PIECE, np.uint8)
        with self.source.reading() as read:
            for offset in range(0, self.nbytes, PIECE):
                piece = buffer[: min(PIECE, self.nbytes - offset)]
                read(piece, offset)
                digest.update(piece.data)
        return digest.hexdigest()


def _begin(dtype: str, shape: tuple[int, ...]) -> "hashlib._Hash":
    return hashlib.sha256(f"{dtype}[{','.join(map(str, shape))}]".encode())


def state_digest(dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> str:
    """SHA-256 over dtype, shape and row-major little-endian bytes of a tensor, in hexadecimal.

    Two tensors have one digest only when their bits, shape and dtype agree.
    """
    digest = _begin(dtype, shape)
    digest.update(data)
    return digest.hexdigest()
