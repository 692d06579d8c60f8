"""Raw files of a record, read without any reader of the checks: sealed bytes, JSON lines, safetensors.

Everything here was written inside a job or given by a user, so it is untrusted: sizes are bounded, no link
is followed below a record, and a file whose digest is not the sealed one is never used.
"""

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from plumbline_mcp.findings.questions import Question
from plumbline_mcp.findings.recompute.decoding import DTYPES, Floats, decode

MAX_JSON_BYTES = 2**26
MAX_LINE_BYTES = 2**27
MAX_LINES = 4_000_000
MAX_HEADER_BYTES = 2**27
MAX_ELEMENTS = 2**27
"""Elements of one tensor that are decoded at once (1 GiB in float64)."""


class Cannot(Exception):
    """Raised where something cannot be recomputed: the message says what is missing or does not hold."""


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """A JSON file of bounded size. Raises `Cannot`."""
    with _opened(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise Cannot(f"{path.name} is larger than {limit:,} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Cannot(f"{path.name} is no JSON: {str(error)[:200]}") from error


def place_in(folder: Path, name: str) -> Path:
    """A path below a folder, with no link leading out of it. Raises `Cannot`."""
    path = folder / name
    if not path.exists():
        raise Cannot(f"{name} is not there")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Cannot(f"{name} leads out of the folder")
    return path


def _opened(path: Path) -> Any:
    """A regular file open for reading. Raises `Cannot` for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise Cannot(f"{path.name} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Cannot(f"{path.name} is no regular file")
    return os.fdopen(descriptor, "rb")


def number(value: Any) -> float | None:
    """A recorded number: NaN and infinities are written as text; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def whole(value: Any, what: str) -> int:
    """A natural number of a record. Raises `Cannot`."""
    if type(value) is not int or not 0 <= value < 2**53:
        raise Cannot(f"{what} is {str(value)[:60]!r}, no natural number")
    return value


def lengths(value: Any, what: str) -> tuple[int, ...]:
    """A shape or an offset. Raises `Cannot`."""
    if not isinstance(value, list | tuple) or len(value) > 8:
        raise Cannot(f"{what} is {str(value)[:60]!r}, no list of lengths")
    return tuple(whole(each, what) for each in value)


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file: what its header says, and its tensors one by one.

    ``entries``: (dtype, shape, first byte, last byte + 1) by name; bytes count from the start of the file.
    """

    path: Path
    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = field(repr=False)
    metadata: dict[str, str] = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> "TensorFile":
        """Read and check the header. Raises `Cannot`."""
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise Cannot(f"{path.name} is no safetensors file: its header does not fit")
            raw = file.read(length)
        try:
            header = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Cannot(f"{path.name} is no safetensors file: {str(error)[:200]}") from error
        if not isinstance(header, dict):
            raise Cannot(f"{path.name} is no safetensors file: its header is no object")
        about = header.pop("__metadata__", {})
        about = about if isinstance(about, dict) else {}
        entries = {str(n): _entry(path.name, n, value, 8 + length, size) for n, value in header.items()}
        return cls(path, entries, {str(key): str(value) for key, value in about.items()})

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.entries[name][1]

    def dtype(self, name: str) -> str:
        """Dtype of a tensor as safetensors names it."""
        return self.entries[name][0]

    def raw(self, name: str) -> bytes:
        """The bytes of a tensor. Raises `Cannot`."""
        _, _, first, last = self.entries[name]
        with _opened(self.path) as file:
            file.seek(first)
            data: bytes = file.read(last - first)
        if len(data) != last - first:
            raise Cannot(f"{self.path.name} ends inside {name[:200]}")
        return data

    def digest(self, name: str) -> str:
        """sha256 of the bytes of a tensor."""
        return hashlib.sha256(self.raw(name)).hexdigest()

    def array(self, name: str) -> Floats:
        """float64[shape]. Raises `Cannot` for a dtype without a decoder and for a tensor too large."""
        dtype, shape, _, _ = self.entries[name]
        if math.prod(shape) > MAX_ELEMENTS:
            raise Cannot(f"{name[:200]} has more than {MAX_ELEMENTS:,} elements")
        if dtype not in DTYPES:
            raise Cannot(f"{name[:200]} is {dtype}, which has no decoder here")
        return decode(self.raw(name), dtype).reshape(shape)

    def integers(self, name: str) -> np.ndarray:
        """int64[shape] of a tensor of whole numbers. Raises `Cannot`."""
        values = self.array(name)
        if not (values == np.rint(values)).all():
            raise Cannot(f"{name[:200]} holds no whole numbers")
        return np.asarray(values.astype(np.int64))


def _entry(file: str, name: str, value: Any, base: int, size: int) -> tuple[str, tuple[int, ...], int, int]:
    where = f"{file}: {str(name)[:200]}"
    if not isinstance(value, dict) or not isinstance(value.get("dtype"), str):
        raise Cannot(f"{where} is described by no dtype")
    shape = lengths(value.get("shape"), f"{where}, shape")
    offsets = lengths(value.get("data_offsets"), f"{where}, data_offsets")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= size - base:
        raise Cannot(f"{where} lies outside the file")
    dtype = value["dtype"]
    if dtype in DTYPES and (offsets[1] - offsets[0]) * 8 != math.prod(shape) * DTYPES[dtype].bits:
        raise Cannot(f"{where} has another number of bytes than {dtype} {list(shape)} takes")
    return dtype, shape, base + offsets[0], base + offsets[1]


@dataclass(frozen=True)
class Record:
    """A sealed run: every file is held against the digest in ``manifest.json`` before it is used."""

    path: Path
    sealed: dict[str, str] = field(repr=False)
    job: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> "Record":
        """Open a run. Raises `Cannot` where it is not sealed, changed, or of another format."""
        if not (path / "manifest.json").is_file():
            raise Cannot(f"{path.name} is not sealed: it has no manifest.json")
        listed = read_json(path / "manifest.json")
        files = listed.get("files") if isinstance(listed, dict) else None
        if not isinstance(files, dict):
            raise Cannot(f"{path.name}: manifest.json lists no files")
        sealed = {name: _sealed(path, name, entry) for name, entry in files.items()}
        record = cls(path, sealed, {})
        job = read_json(record.file("job.json"))
        if not isinstance(job, dict) or job.get("format") != 1:
            raise Cannot(f"{path.name}: job.json is of a format that is not read here")
        return cls(path, sealed, job)

    @property
    def settings(self) -> dict[str, Any]:
        """What the job was launched with."""
        found = self.job.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def world_size(self) -> int:
        """Ranks that the job launched."""
        return max(1, whole(self.job.get("world_size", 1), "world_size"))

    def names(self, prefix: str) -> list[str]:
        """Sealed files below a prefix, sorted."""
        return sorted(name for name in self.sealed if name.startswith(prefix))

    def file(self, name: str) -> Path:
        """The path of a sealed file with the sealed bytes. Raises `Cannot`."""
        if name not in self.sealed:
            raise Cannot(f"{self.path.name}: {name} was not sealed")
        path = self.path / name
        if path.resolve(strict=False) != self.path.resolve() / name:
            raise Cannot(f"{self.path.name}: {name} leads out of the record")
        digest = hashlib.sha256()
        with _opened(path) as file:
            while block := file.read(2**20):
                digest.update(block)
        if digest.hexdigest() != self.sealed[name]:
            raise Cannot(f"{self.path.name}: {name} was changed after it was sealed")
        return path

    def json(self, name: str) -> Any:
        """A sealed JSON file, None where there is none."""
        return read_json(self.file(name)) if name in self.sealed else None

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The objects of a JSON lines file; no file is no line. Raises `Cannot`."""
        if name not in self.sealed:
            return
        with _opened(self.file(name)) as file:
            for position in range(1, MAX_LINES + 2):
                raw = file.readline(MAX_LINE_BYTES + 1)
                if not raw:
                    return
                if len(raw) > MAX_LINE_BYTES or position > MAX_LINES:
                    raise Cannot(f"{name}, line {position}: larger than the limit")
                try:
                    value = json.loads(raw)
                except (ValueError, RecursionError) as error:
                    raise Cannot(f"{name}, line {position} is no JSON") from error
                if not isinstance(value, dict):
                    raise Cannot(f"{name}, line {position} is no object")
                yield value

    @cached_property
    def rank_folders(self) -> dict[int, str]:
        """``records/rank-00000`` ... of every rank that recorded anything. Raises `Cannot`."""
        found: dict[int, str] = {}
        for name in self.names("records/rank-"):
            folder = "/".join(name.split("/")[:2])
            digits = folder.rpartition("-")[2]
            if not digits.isdecimal() or found.setdefault(int(digits), folder) != folder:
                raise Cannot(f"{folder} is no folder of one rank")
        if any(rank >= self.world_size for rank in found):
            raise Cannot("there are records of ranks that the job did not launch")
        return found

    def recorder_failed(self, rank: int) -> bool:
        """Whether a rank's recorder does not say that it recorded everything."""
        folder = self.rank_folders.get(rank, "")
        if f"{folder}/recorder-failed.json" in self.sealed:
            return True
        about = self.json(f"{folder}/recorder.json")
        return not (isinstance(about, dict) and about.get("state") == "complete")

    def ended_well(self, rank: int) -> bool:
        """Whether a rank left an exit file that says it ended by itself with code 0."""
        about = self.json(f"exit/rank-{rank:05d}.json")
        if not isinstance(about, dict):
            return False
        stopped = about.get("timed_out") or about.get("stopped") or about.get("signal") is not None
        return about.get("code") == 0 and not stopped

    def was_stopped(self, rank: int) -> bool:
        """Whether a rank was told to stop because another one failed first."""
        about = self.json(f"exit/rank-{rank:05d}.json")
        return isinstance(about, dict) and bool(about.get("stopped")) and not about.get("timed_out")

    def refuse_cancelled(self) -> None:
        """Nothing is recomputed of a job that was told to stop. Raises `Cannot`."""
        about = self.json("exit/job.json")
        if isinstance(about, dict) and about.get("outcome") == "cancelled":
            raise Cannot("the job was cancelled, so its records end anywhere")


def first_record(folder: Path, question: Question) -> Record:
    """The run that a question is about. Raises `Cannot`."""
    if not question.records:
        raise Cannot("the question names no record")
    return Record.open(place_in(folder, question.records[0]))


def _sealed(path: Path, name: str, entry: Any) -> str:
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name:
        raise Cannot(f"{path.name}: manifest.json names {name[:200]!r}, a path outside of the record")
    if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        raise Cannot(f"{path.name}: manifest.json gives no digest of {name[:200]!r}")
    return str(entry["sha256"])
