"""A checkpoint folder read from its safetensors: names, numbers, and low-precision tensors decoded.

Layouts: MXFP4 of gpt-oss (``X_blocks`` [..., G, 16] bytes of two E2M1 codes, the low one first, ``X_scales``
[..., G] E8M0 codes as bytes), block FP8 (E4M3 codes times ``_scale_inv`` of their block; DeepSeek-V3), and
packed FP4 (``weight`` [r, c / 2], ``scale`` [r, c / 32] E8M0; DeepSeek-V4).
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import DTYPES, FOUR_BITS, TORCH, Floats
from plumbline_mcp.findings.recompute.reading import MAX_ELEMENTS, Cannot, TensorFile, place_in, read_json

INDEX = "model.safetensors.index.json"
_GROUP = 32
"""Values that share a scale (OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True)
class Coded:
    """A low-precision tensor: its codes, its scales, and how they are laid out."""

    kind: str
    scale: str
    block: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Weights:
    """``files``: the file of every tensor by name."""

    folder: Path
    files: dict[str, TensorFile] = field(repr=False)

    @classmethod
    def open(cls, folder: Path) -> "Weights":
        """Every weight file that the index names, else every one there. Raises `Cannot`."""
        if not folder.is_dir():
            raise Cannot(f"{folder.name} is no folder of a checkpoint")
        names, mapped = _weight_files(folder)
        files: dict[str, TensorFile] = {}
        for name in names:
            file = TensorFile.open(place_in(folder, name))
            for tensor in file.entries:
                if tensor in files:
                    raise Cannot(f"{tensor[:200]} lies in two files")
                files[tensor] = file
        lost = [t for t, name in mapped.items() if t not in files or files[t].path.name != name]
        if lost:
            raise Cannot(f"the index names {lost[0][:200]} in a file that does not hold it")
        return cls(folder, files)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, empty where there is none."""
        return document(self.folder, "config.json") or {}

    def dtype(self, name: str) -> str:
        """Dtype of a tensor as safetensors names it."""
        return self.files[name].dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor as it lies on disk."""
        return self.files[name].shape(name)

    def raw(self, name: str) -> bytes:
        """Bytes of a tensor."""
        return self.files[name].raw(name)

    def plain(self, name: str) -> Floats:
        """float64[shape] of a tensor whose elements are their own numbers."""
        return self.files[name].array(name)

    @cached_property
    def coded(self) -> dict[str, Coded]:
        """Low-precision tensors by the name of their codes. Raises `Cannot` where scales do not fit."""
        found = {}
        for name in self.files:
            one = self._four_bits(name) or self._scaled(name)
            if one is not None:
                found[name] = one
        return found

    def _four_bits(self, name: str) -> Coded | None:
        scale = name.removesuffix("_blocks") + "_scales"
        if not name.endswith("_blocks") or self.dtype(name) != "U8" or scale not in self.files:
            return None
        if self.shape(name) != (*self.shape(scale), 16) or self.dtype(scale) != "U8":
            raise Cannot(f"the scales of {name[:200]} do not fit it")
        return Coded("mxfp4", scale)

    def _scaled(self, name: str) -> Coded | None:
        if not name.endswith("weight") or self.dtype(name) not in ("F8_E4M3", "I8", "U8"):
            return None
        names = (f"{name}_scale_inv", f"{name.removesuffix('weight')}scale")
        scale = next((each for each in names if each in self.files), None)
        if scale is None or len(self.shape(name)) != 2 or len(self.shape(scale)) != 2:
            return None
        rows, columns = self.shape(name)
        if self.dtype(name) != "F8_E4M3":
            if self.dtype(scale) != "F8_E8M0":
                return None
            if self.shape(scale) != (rows, columns * 2 // _GROUP) or columns * 2 % _GROUP:
                raise Cannot(f"the scales of {name[:200]} do not fit it")
            return Coded("fp4", scale)
        about = self.config.get("quantization_config")
        stated = about.get("weight_block_size") if isinstance(about, dict) else None
        sizes = [tuple(stated)] if isinstance(stated, list) and len(stated) == 2 else []
        for block in sizes or [(128, 128), (64, 64), (32, 32)]:
            if all(type(size) is int and size > 0 for size in block):
                fits = (math.ceil(rows / block[0]), math.ceil(columns / block[1]))
                if self.shape(scale) == fits:
                    return Coded("fp8", scale, (block[0], block[1]))
        raise Cannot(f"the scales of {name[:200]} do not fit it")

    def numbers(self, name: str, *, single: bool = False) -> Floats:
        """float64 of a tensor, decoded. ``single``: products of block FP8 rounded to float32."""
        one = self.coded.get(name)
        if one is None:
            return self.plain(name)
        if one.kind == "fp8":
            return self._block_fp8(name, one, single=single)
        if math.prod(self.decoded_shape(name)) > MAX_ELEMENTS:
            raise Cannot(f"{name[:200]} has more than {MAX_ELEMENTS:,} elements")
        packed = np.frombuffer(self.raw(name), np.uint8)
        values = FOUR_BITS[np.stack([packed & 15, packed >> 4], axis=-1)].reshape(-1, _GROUP)
        codes = np.frombuffer(self.raw(one.scale), np.uint8).astype(np.float64)
        scales = np.where(codes == 255, np.nan, np.exp2(codes - 127))
        return np.asarray((values * scales[:, None]).reshape(self.decoded_shape(name)))

    def decoded_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor once it is decoded."""
        one, shape = self.coded.get(name), self.shape(name)
        if one is None or one.kind == "fp8":
            return shape
        return (*shape[:-2], shape[-2] * _GROUP) if one.kind == "mxfp4" else (*shape[:-1], shape[-1] * 2)

    def _block_fp8(self, name: str, one: Coded, *, single: bool) -> Floats:
        codes, scales = self.plain(name), self.plain(one.scale)
        rows, columns = codes.shape
        spread = np.kron(scales, np.ones(one.block))[:rows, :columns]
        if single:
            return np.asarray((codes.astype(np.float32) * spread.astype(np.float32)).astype(np.float64))
        return np.asarray(codes * spread)


def _weight_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The weight files, and what the index maps."""
    if (folder / INDEX).is_file():
        index = read_json(place_in(folder, INDEX))
        mapped = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(mapped, dict) or not all(isinstance(name, str) for name in mapped.values()):
            raise Cannot(f"{INDEX} holds no weight map")
        return sorted(set(mapped.values())), {str(name): file for name, file in mapped.items()}
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"], {}
    raise Cannot(f"{folder.name} holds no safetensors weights")


def document(folder: Path, name: str) -> dict[str, Any] | None:
    """A JSON object of a checkpoint folder, None where it is not there. Raises `Cannot`."""
    if not (folder / name).exists():
        return None
    value = read_json(place_in(folder, name))
    if not isinstance(value, dict):
        raise Cannot(f"{name} is no JSON object")
    return value


def stated_dtype(config: dict[str, Any]) -> str | None:
    """The dtype that a configuration states, as torch names it."""
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, dict) else {}):
        value = place.get("dtype", place.get("torch_dtype"))
        if isinstance(value, str) and value.removeprefix("torch.") in TORCH:
            return value.removeprefix("torch.")
    return None


def is_wide(dtype: str) -> bool:
    """Whether a dtype is a float of 16 bits or more: one that any number can be rounded to."""
    return dtype in DTYPES and DTYPES[dtype].is_float and DTYPES[dtype].bits >= 16
