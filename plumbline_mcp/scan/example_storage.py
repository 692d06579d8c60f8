"""How the embedded release's tensors are made and stored: bf16 rounding, safetensors shards, their index."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

FP8_BLOCK = 32


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


def matrix(
    random: np.random.Generator, name: str, rows: int, columns: int, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    """``name.weight`` [rows, columns] in bf16, or in block FP8 with ``name.weight_scale_inv``.

    Block FP8: float8_e4m3fn codes and one fp32 scale for a block of 32 x 32; a value is code times scale.
    """
    if not quantized:
        yield f"{name}.weight", normal(random, rows, columns, scale=0.1)
        return
    codes = random.integers(0, 0x7F, (rows, columns), dtype=np.uint8)  # 0x7F is NaN
    codes |= random.integers(0, 2, (rows, columns), dtype=np.uint8) << np.uint8(7)
    scales = (0.5 + random.random((-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)))).astype(
        "<f4"
    ) / np.float32(1024)
    yield f"{name}.weight", StoredTensor("F8_E4M3", codes.shape, codes.tobytes())
    yield f"{name}.weight_scale_inv", StoredTensor("F32", scales.shape, scales.astype("<f4").tobytes())


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
