"""The number formats of safetensors: codes to floats and floats to codes, from their bit layouts.

Sources: IEEE 754-2019 (F16, F32, F64); OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2); OCP
Microscaling Formats 1.0 (E2M1, E8M0). A bfloat16 is the upper half of a float32.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[Any]
Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Format:
    """One dtype of the safetensors format.

    ``code`` is the unsigned numpy type that holds one element's bits; ``sign`` the sign bit; ``infinity`` the
    smallest magnitude that is no finite number; ``roundoff`` half the distance from 1 to the next number. The
    last three are 0 where the format has none.
    """

    name: str
    bits: int
    code: str
    sign: int = 0
    infinity: int = 0
    roundoff: float = 0.0

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers that `decode` knows."""
        return self.infinity > 0


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Format("F64", 64, "u8", 1 << 63, 0x7FF0 << 48, 2.0**-53),
        Format("F32", 32, "u4", 1 << 31, 0x7F80 << 16, 2.0**-24),
        Format("F16", 16, "u2", 0x8000, 0x7C00, 2.0**-11),
        Format("BF16", 16, "u2", 0x8000, 0x7F80, 2.0**-8),
        Format("F8_E4M3", 8, "u1", 0x80, 0x7F, 2.0**-4),
        Format("F8_E5M2", 8, "u1", 0x80, 0x7C, 2.0**-3),
        Format("F8_E8M0", 8, "u1", 0, 0xFF, 0.5),
        Format("F8_E4M3FNUZ", 8, "u1"),
        Format("F8_E5M2FNUZ", 8, "u1"),
        Format("F4", 4, "u1"),
        Format("F6_E2M3", 6, "u1"),
        Format("F6_E3M2", 6, "u1"),
        Format("BOOL", 8, "u1"),
        Format("U8", 8, "u1"),
        Format("I8", 8, "i1"),
        Format("U16", 16, "u2"),
        Format("I16", 16, "i2"),
        Format("U32", 32, "u4"),
        Format("I32", 32, "i4"),
        Format("U64", 64, "u8"),
        Format("I64", 64, "i8"),
        Format("C64", 64, "u8"),
    )
}

TORCH_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
"""The names that configurations and packs use."""


def _small_float(exponent_bits: int, mantissa_bits: int, bias: int) -> Floats:
    """Every value of a small float with a sign bit and subnormals, by code, before its NaN codes are set."""
    code = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    magnitude = np.where(
        exponent == 0, np.ldexp(mantissa, 1 - bias), np.ldexp(1 + mantissa, np.maximum(exponent, 1) - bias)
    )
    negative = (code >> (exponent_bits + mantissa_bits)) & 1
    return np.where(negative == 1, -magnitude, magnitude).astype(np.float32)


def _e4m3() -> Floats:
    values = _small_float(4, 3, 7)
    values[[0x7F, 0xFF]] = np.nan
    return values


def _e5m2() -> Floats:
    values = _small_float(5, 2, 15)
    values[[0x7C, 0xFC]] = np.inf, -np.inf
    values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return values


def _e8m0() -> Floats:
    values: Floats = np.ldexp(1.0, np.minimum(np.arange(256), 254) - 127).astype(np.float32)
    values[255] = np.nan
    return values


E2M1 = _small_float(2, 1, 1)
"""The 16 values of an FP4 nibble."""
E4M3 = _e4m3()
E8M0 = _e8m0()
_TABLES = {"F8_E4M3": E4M3, "F8_E5M2": _e5m2(), "F8_E8M0": E8M0}


def decode(codes: Codes, fmt: Format) -> Floats:
    """Numbers of codes, exactly: float64 for F64 and integers of 32 bits and more, else float32."""
    if fmt.name == "BF16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if fmt.name == "F16":
        return codes.view(np.float16).astype(np.float32)
    if fmt.name == "F32":
        return codes.view(np.float32)
    if fmt.name == "F64":
        return codes.view(np.float64)
    if fmt.name in _TABLES:
        return _TABLES[fmt.name][codes]
    return codes.astype(np.float64 if fmt.bits >= 32 else np.float32)


def rounded(values: Floats, fmt: Format) -> Floats:
    """Numbers rounded once, to nearest with ties to even, to a format of 16 bits or more."""
    if fmt.name == "BF16":
        return _rounded_to_bfloat16(values)
    target = {"F16": np.float16, "F32": np.float32, "F64": np.float64}[fmt.name]
    with np.errstate(over="ignore"):
        return values.astype(target).astype(np.float64 if fmt.name == "F64" else np.float32)


def _rounded_to_bfloat16(values: Floats) -> Floats:
    if values.dtype == np.float64:
        values = _rounded_to_odd(values)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    up = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    nearest = ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), nearest)


def _rounded_to_odd(values: Floats) -> Floats:
    """Float64 to float32 by rounding to odd, so that rounding again rounds once (Boldo 2008)."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    bits = narrow.view(np.uint32).copy()
    inexact = np.isfinite(values) & (narrow.astype(np.float64) != values)
    too_far = inexact & (np.abs(narrow.astype(np.float64)) > np.abs(values))
    bits[too_far] -= np.uint32(1)
    bits[inexact] |= np.uint32(1)
    return bits.view(np.float32)


def encoded(values: Floats, fmt: Format) -> bytes:
    """Numbers rounded once to a format of 16 bits or more, as little-endian bytes."""
    nearest = rounded(values, fmt)
    if fmt.name == "BF16":
        return (np.ascontiguousarray(nearest).view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    return nearest.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[fmt.name]).tobytes()
