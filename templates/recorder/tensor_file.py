"""Writes a safetensors file as tensors come: any dtype, local shards, one pass, by rename."""

import json
import os
import struct
import threading
from pathlib import Path

from plumbline_recorder.reading import buffer, dtype_name, local, quiet, strided

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
"""Names of the format. Any other dtype is written as its bytes (U8, last dimension in bytes), its name in the
metadata's ``dtypes``."""

SIZES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}


class TensorFile:
    """A file that is being written; threads of the backward pass may add to it."""

    def __init__(self, path: Path, room: int = 1 << 16) -> None:
        """``room``: bytes kept free for the header; where it needs more, the data are copied once more."""
        self._path, self._room = path, room + (-room % 8)
        self._temporary = path.with_name(path.name + ".part")
        self._file = self._temporary.open("w+b")
        self._file.seek(8 + self._room)
        self._header: "dict[str, object]" = {}
        self._offset = 0
        self._lock = threading.Lock()
        self._odd: "dict[str, str]" = {}
        self._samples: "dict[str, object]" = {}

    def __contains__(self, name: str) -> bool:
        return name in self._header

    def add(self, name: str, tensor: object, limit: int = 0) -> None:
        """Write a tensor's local part; above ``limit`` elements (0: none) every stride-th of it, flat."""
        with quiet():
            mine = local(tensor)
            shape = list(mine.shape)
            taken, stride = strided(mine, limit)
            if stride > 1:
                self._samples[name] = {"stride": stride, "shape": shape}
            kind = DTYPES.get(dtype_name(mine.dtype))
            held, raw = buffer(taken)
            shape = list(held.shape)
            if kind is None:
                self._odd[name] = dtype_name(mine.dtype)
                kind, shape = "U8", [*shape[:-1], (shape[-1] if shape else 1) * held.element_size()]
            self._put(name, kind, shape, raw)

    def add_number(self, name: str, value: float) -> None:
        """Write a Python number as a float64 scalar."""
        self._put(name, "F64", [], struct.pack("<d", value))

    def _put(self, name: str, kind: str, shape: "list[int]", raw: object) -> None:
        with self._lock:
            if name in self._header:
                raise ValueError("tensor %s is written twice" % name)
            filling = -self._offset % SIZES.get(kind, 1)
            if filling:
                self._entry("padding.%d" % self._offset, "U8", [filling], b"\0" * filling)
            self._entry(name, kind, shape, raw)

    def _entry(self, name: str, kind: str, shape: "list[int]", raw: object) -> None:
        end = self._offset + len(raw)
        self._file.write(raw)
        self._header[name] = {"dtype": kind, "shape": shape, "data_offsets": [self._offset, end]}
        self._offset = end

    def close(self, metadata: "dict[str, str]") -> None:
        """Write the header, then give the file its name."""
        facts = {**metadata, "samples": json.dumps(self._samples), "dtypes": json.dumps(self._odd)}
        text = json.dumps({"__metadata__": facts, **self._header}).encode()
        if len(text) > self._room:
            self._move(len(text) + (-len(text) % 8))
        text += b" " * (self._room - len(text))
        self._file.seek(0)
        self._file.write(struct.pack("<Q", len(text)) + text)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._path)

    def _move(self, room: int) -> None:
        """Shift the data up, last block first."""
        block, shift = 1 << 22, room - self._room
        position, start = 8 + self._room + self._offset, 8 + self._room
        while position > start:
            size = min(block, position - start)
            position -= size
            self._file.seek(position)
            data = self._file.read(size)
            self._file.seek(position + shift)
            self._file.write(data)
        self._room = room

    def discard(self) -> None:
        """Close and remove what was written."""
        try:
            self._file.close()  # it may have bytes left that the disk does not take
        finally:
            self._temporary.unlink(missing_ok=True)
