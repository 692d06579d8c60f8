"""Writes a safetensors file: eight bytes of header length, a JSON header, then the tensors' bytes."""

import array
import json
import os
import struct
import sys
from pathlib import Path

DTYPES = {"i": "I32", "q": "I64", "B": "U8", "f": "F32"}
"""Type code of an `array.array` to the dtype that the format names."""


def write_safetensors(path: Path, tensors: "dict[str, array.array]", metadata: "dict[str, str]") -> None:
    """Write one-dimensional tensors, by rename: a reader sees the whole file or none."""
    header: "dict[str, object]" = {"__metadata__": metadata}
    offset = 0
    for name, values in tensors.items():
        end = offset + len(values) * values.itemsize
        header[name] = {
            "dtype": DTYPES[values.typecode],
            "shape": [len(values)],
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            if sys.byteorder == "big":
                values = array.array(values.typecode, values)
                values.byteswap()
            values.tofile(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
