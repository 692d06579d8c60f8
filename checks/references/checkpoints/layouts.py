"""Low-precision tensors as numbers: MXFP4, block FP8 in both layouts, packed FP4; and views of other tensors.

Everything is read as a grid of rows, [prod(shape[:-1]), shape[-1]] (a vector is one column), a block of rows
at a time, so that memory stays bounded by the block.

Layouts on disk (checked against the reference implementation in the tests):

* MXFP4 (gpt-oss): ``X_blocks`` U8 [..., G, 16] and ``X_scales`` U8 [..., G]; two E2M1 nibbles a byte, the low
  one first; value = nibble * 2^(scale - 127); the last two axes unfold to 32 G columns.
* Block FP8: ``P.weight`` F8_E4M3 [r, c] with ``P.weight_scale_inv`` F32 (DeepSeek-V3) or ``P.scale`` F8_E8M0
  (DeepSeek-V4) [ceil(r/b), ceil(c/b)]; value = code * scale of its block; last blocks may be ragged.
* Packed FP4 (DeepSeek-V4 experts): ``P.weight`` I8 [r, c/2] of two nibbles a byte, the low one first, and
  ``P.scale`` F8_E8M0 [r, c/32]; value = nibble * scale of its 32 columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from checks.references.checkpoints.formats import E2M1, E8M0, Floats, Format, decode, rounded
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.tensors import Tensor

Kind = Literal["mxfp4", "fp8", "fp4"]
_GROUP = 32
"""Values per scale in MXFP4 and in the packed FP4 of DeepSeek-V4 (OCP MX 1.0: block size 32)."""


class Values(Protocol):
    """Numbers of a tensor, whatever they are stored as."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""

    def rows(self, first: int, last: int) -> Floats:
        """Rows of the grid as float32 or float64, [last - first, columns]."""


def grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a shape: the last axis gives the columns, a vector is one column."""
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return rows, shape[-1]


@dataclass(frozen=True)
class Plain:
    """A tensor whose elements are their own numbers."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.tensor.shape

    def rows(self, first: int, last: int) -> Floats:
        """Decode the elements of the rows."""
        columns = grid(self.shape)[1]
        codes = self.tensor.codes(first * columns, last * columns)
        return decode(codes, self.tensor.format).reshape(last - first, columns)


@dataclass(frozen=True)
class Rounded:
    """Another view rounded once to a format."""

    values: Values
    format: Format

    @property
    def shape(self) -> tuple[int, ...]:
        """The inner shape."""
        return self.values.shape

    def rows(self, first: int, last: int) -> Floats:
        """Round the inner rows."""
        return rounded(self.values.rows(first, last), self.format)


@dataclass
class Transposed:
    """Another view with its last two axes swapped; keeps one decoded matrix at a time."""

    values: Values
    _kept: tuple[int, Floats] | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The inner shape with its last two axes swapped."""
        *lead, rows, columns = self.values.shape
        return (*lead, columns, rows)

    def _matrix(self, index: int) -> Floats:
        if self._kept is None or self._kept[0] != index:
            height = self.values.shape[-2]
            self._kept = (index, self.values.rows(index * height, (index + 1) * height).T)
        return self._kept[1]

    def rows(self, first: int, last: int) -> Floats:
        """Rows of the transposed matrices."""
        height = self.shape[-2]
        blocks = []
        while first < last:
            index, start = divmod(first, height)
            stop = min(height, start + last - first)
            blocks.append(self._matrix(index)[start:stop])
            first += stop - start
        return np.concatenate(blocks) if blocks else np.empty((0, self.shape[-1]), np.float32)


@dataclass(frozen=True)
class Mxfp4:
    """Blocks and scales of the gpt-oss layout."""

    blocks: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., 32 G]."""
        *lead, groups, _ = self.blocks.shape
        return (*lead, groups * _GROUP)

    def rows(self, first: int, last: int) -> Floats:
        """Unpack nibbles, low first, and scale them."""
        groups = self.blocks.shape[-2]
        packed = self.blocks.codes(first * groups * 16, last * groups * 16)
        scale = E8M0[self.scales.codes(first * groups, last * groups)]
        values = _nibbles(packed).reshape(-1, _GROUP) * scale[:, None]
        return values.reshape(last - first, groups * _GROUP)


def _nibbles(packed: Floats) -> Floats:
    values = np.empty((packed.size, 2), np.float32)
    values[:, 0] = E2M1[packed & 15]
    values[:, 1] = E2M1[packed >> 4]
    return values


@dataclass(frozen=True)
class PackedFp4:
    """Two nibbles a byte with a power-of-two scale for every 32 values of a row."""

    weight: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[r, c]."""
        return (*self.weight.shape[:-1], self.weight.shape[-1] * 2)

    def rows(self, first: int, last: int) -> Floats:
        """Unpack nibbles, low first, and scale them."""
        width, groups = self.weight.shape[-1], self.scale.shape[-1]
        packed = self.weight.codes(first * width, last * width).view(np.uint8)
        scale = E8M0[self.scale.codes(first * groups, last * groups)]
        values = _nibbles(packed).reshape(-1, _GROUP) * scale[:, None]
        return values.reshape(last - first, width * 2)


@dataclass(frozen=True)
class BlockFp8:
    """FP8 codes with one scale a block of ``block`` rows and columns. ``exact``: products in float64."""

    weight: Tensor
    scale: Tensor
    block: tuple[int, int]
    exact: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """[r, c]."""
        return self.weight.shape

    def rows(self, first: int, last: int) -> Floats:
        """Code times the scale of its block, in float32 (the formats' own definition) or exactly."""
        columns = self.weight.shape[-1]
        values = decode(self.weight.codes(first * columns, last * columns), self.weight.format)
        values = values.reshape(last - first, columns)
        scale = decode(self.scale.codes(), self.scale.format).reshape(self.scale.shape)
        row = np.arange(first, last) // self.block[0]
        column = np.arange(columns) // self.block[1]
        if self.exact:
            values, scale = values.astype(np.float64), scale.astype(np.float64)
        return values * scale[row[:, None], column[None, :]]


@dataclass(frozen=True)
class Group:
    """The tensors that are one low-precision tensor together; ``main`` holds the codes."""

    kind: Kind
    main: str
    scale: str
    values: Values
    exact: Values


def groups(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Group]:
    """Low-precision tensors by the name of their codes. Raises `Unreadable` where scales do not fit."""
    found: dict[str, Group] = {}
    for name, tensor in tensors.items():
        group = _mxfp4(name, tensor, tensors) or _scaled(name, tensor, tensors, config)
        if group is not None:
            found[name] = group
    return found


def _mxfp4(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> Group | None:
    scale_name = name.removesuffix("_blocks") + "_scales"
    if not name.endswith("_blocks") or tensor.dtype != "U8" or scale_name not in tensors:
        return None
    scales = tensors[scale_name]
    if scales.dtype != "U8" or tensor.shape != (*scales.shape, 16) or len(scales.shape) < 2:
        raise _misfit(scales, tensor)
    values = Mxfp4(tensor, scales)
    return Group("mxfp4", name, scale_name, values, values)


def _scaled(
    name: str, tensor: Tensor, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Group | None:
    stem = name.removesuffix("weight")
    if stem == name or tensor.dtype not in ("F8_E4M3", "I8", "U8") or len(tensor.shape) != 2:
        return None
    scale = tensors.get(f"{name}_scale_inv") or tensors.get(f"{stem}scale")
    if scale is None or scale.dtype not in ("F32", "BF16", "F8_E8M0") or len(scale.shape) != 2:
        return None
    if tensor.dtype == "F8_E4M3":
        block = _block(tensor, scale, config)
        return Group(
            "fp8",
            name,
            scale.name,
            BlockFp8(tensor, scale, block),
            BlockFp8(tensor, scale, block, exact=True),
        )
    if scale.dtype != "F8_E8M0":
        return None
    if scale.shape != (tensor.shape[0], tensor.shape[1] * 2 // _GROUP) or tensor.shape[1] * 2 % _GROUP:
        raise _misfit(scale, tensor)
    values = PackedFp4(tensor, scale)
    return Group("fp4", name, scale.name, values, values)


def _block(tensor: Tensor, scale: Tensor, config: Mapping[str, Any]) -> tuple[int, int]:
    """The block the configuration states, else the only one of the customary sizes that the grid fits."""
    quantization = config.get("quantization_config")
    stated = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if isinstance(stated, list) and len(stated) == 2 and all(type(n) is int and n > 0 for n in stated):
        candidates = [(stated[0], stated[1])]
    else:
        candidates = [(size, size) for size in (128, 64, 32)]
    for block in candidates:
        if scale.shape == tuple(-(-length // size) for length, size in zip(tensor.shape, block, strict=True)):
            return block
    raise _misfit(scale, tensor)


def _misfit(scale: Tensor, tensor: Tensor) -> Unreadable:
    return Unreadable(
        scale.file,
        f"the scales {scale.name} {list(scale.shape)} do not fit {tensor.name} {list(tensor.shape)}",
    )
