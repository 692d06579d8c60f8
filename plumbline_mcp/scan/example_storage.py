"""How the embedded release's tensors are made and stored: bf16 rounding, safetensors shards, their index."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in the file: dtype name of safetensors, shape and little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def bfloat16(values: npt.NDArray[np.float32]) -> StoredTensor:
    """Round to nearest even: add half of the lowest kept bit, less one when that bit is 0."""
    bits = values.astype("<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return StoredTensor("BF16", values.shape, rounded.astype("<u2").tobytes())


def normal(random: np.random.Generator, *shape: int, scale: float, mean: float = 0.0) -> StoredTensor:
    """Normally distributed values in bf16."""
    return bfloat16((random.standard_normal(shape) * scale + mean).astype(np.float32))


def write_shards(folder: Path, stored: dict[str, StoredTensor], shards: int) -> None:
    """Write ``model-0000n-of-0000m.safetensors`` in the order of the tensors, and their index."""
    total = sum(len(tensor.data) for tensor in stored.values())
    weight_map: dict[str, str] = {}
    files: dict[str, dict[str, StoredTensor]] = {}
    written = 0
    for name, tensor in stored.items():
        part = min(written * shards // total, shards - 1) + 1
        weight_map[name] = f"model-{part:05d}-of-{shards:05d}.safetensors"
        files.setdefault(weight_map[name], {})[name] = tensor
        written += len(tensor.data)
    for file, content in files.items():
        (folder / file).write_bytes(_serialized(content))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _serialized(content: dict[str, StoredTensor]) -> bytes:
    """A safetensors file: header length (u64), JSON header padded with spaces to 8 bytes, then tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in content.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensor.data for tensor in content.values())
