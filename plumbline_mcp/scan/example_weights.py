"""The embedded release's weights: gpt-oss in its on-disk format, random in every tensor, from one seed.

Layout of the quantized experts (OCP Microscaling, MXFP4): blocks of 32 codes of 4 bits along the input
dimension, two codes a byte (low first), one power-of-two scale a block, biased by 127. ``gate_up_proj`` has
its gate and up rows interleaved.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BLOCK = 32


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in the file: dtype name of safetensors, shape and little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Shape:
    """What decides names and shapes. ``hidden`` and ``intermediate`` are multiples of 32 (a scale block)."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    experts: int
    vocabulary: int


def _bfloat16(values: npt.NDArray[np.float32]) -> StoredTensor:
    """Round to nearest even: add half of the lowest kept bit, less one when that bit is 0."""
    bits = values.astype("<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return StoredTensor("BF16", values.shape, rounded.astype("<u2").tobytes())


def _normal(random: np.random.Generator, *shape: int, scale: float, mean: float = 0.0) -> StoredTensor:
    return _bfloat16((random.standard_normal(shape) * scale + mean).astype(np.float32))


def _mxfp4(
    random: np.random.Generator, name: str, shape: tuple[int, int, int]
) -> Iterator[tuple[str, StoredTensor]]:
    """``shape`` is [experts, rows, columns]; every code occurs, so all of a decoder's table is used."""
    experts, rows, columns = shape
    grid = (experts, rows, columns // _BLOCK)
    blocks = random.integers(0, 256, (*grid, _BLOCK // 2), dtype=np.uint8)
    scales = random.integers(119, 123, grid, dtype=np.uint8)
    yield f"{name}_blocks", StoredTensor("U8", blocks.shape, blocks.tobytes())
    yield f"{name}_scales", StoredTensor("U8", scales.shape, scales.tobytes())


def _experts(
    random: np.random.Generator, prefix: str, shape: Shape, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    count, hidden, inner = shape.experts, shape.hidden, shape.intermediate
    if quantized:
        yield from _mxfp4(random, f"{prefix}.gate_up_proj", (count, 2 * inner, hidden))
        yield from _mxfp4(random, f"{prefix}.down_proj", (count, hidden, inner))
    else:
        yield f"{prefix}.gate_up_proj", _normal(random, count, hidden, 2 * inner, scale=0.05)
        yield f"{prefix}.down_proj", _normal(random, count, inner, hidden, scale=0.05)
    yield f"{prefix}.gate_up_proj_bias", _normal(random, count, 2 * inner, scale=0.1)
    yield f"{prefix}.down_proj_bias", _normal(random, count, hidden, scale=0.1)


def _layer(
    random: np.random.Generator, prefix: str, shape: Shape, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    queries, keys = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    attention = f"{prefix}.self_attn"
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"{attention}.{name}.weight", _normal(random, rows, shape.hidden, scale=0.1)
        yield f"{attention}.{name}.bias", _normal(random, rows, scale=0.2)
    yield f"{attention}.o_proj.weight", _normal(random, shape.hidden, queries, scale=0.1)
    yield f"{attention}.o_proj.bias", _normal(random, shape.hidden, scale=0.2)
    yield f"{attention}.sinks", _normal(random, shape.heads, scale=1.0)
    yield f"{prefix}.input_layernorm.weight", _normal(random, shape.hidden, scale=0.1, mean=1.0)
    yield f"{prefix}.post_attention_layernorm.weight", _normal(random, shape.hidden, scale=0.1, mean=1.0)
    yield f"{prefix}.mlp.router.weight", _normal(random, shape.experts, shape.hidden, scale=0.3)
    yield f"{prefix}.mlp.router.bias", _normal(random, shape.experts, scale=0.3)
    yield from _experts(random, f"{prefix}.mlp.experts", shape, quantized)


def tensors(
    shape: Shape, seed: int, *, quantized: bool, tied: bool, multi_token: bool
) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor by its on-disk name. ``multi_token`` adds a head that the config does not name."""
    random = np.random.Generator(np.random.PCG64(seed))
    yield "model.embed_tokens.weight", _normal(random, shape.vocabulary, shape.hidden, scale=0.5)
    for layer in range(shape.layers):
        yield from _layer(random, f"model.layers.{layer}", shape, quantized)
    yield "model.norm.weight", _normal(random, shape.hidden, scale=0.1, mean=1.0)
    if not tied:
        yield "lm_head.weight", _normal(random, shape.vocabulary, shape.hidden, scale=0.1)
    if multi_token:
        yield "mtp.0.eh_proj.weight", _normal(random, shape.hidden, 2 * shape.hidden, scale=0.1)
        yield "mtp.0.norm.weight", _normal(random, shape.hidden, scale=0.1, mean=1.0)


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
