"""Number formats from their definitions: bytes to float64, and float64 rounded to a format and encoded.

Sources: IEEE 754-2019 (binary16, binary32, binary64); bfloat16 is binary32 without its lower 16 bits; OCP
8-bit Floating Point Specification 1.0 (E4M3 without infinities, E5M2); OCP Microscaling Formats 1.0 (E8M0
scales, E2M1 elements).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """A number format.

    ``digits``: binary digits of the significand with the leading one; ``lowest``: exponent of the smallest
    normal number; 0 digits: whole numbers.
    """

    bits: int
    digits: int = 0
    lowest: int = 0

    @property
    def unit(self) -> float:
        """The unit roundoff: half the distance from 1 to the next number, the largest relative rounding."""
        return 2.0**-self.digits

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point format."""
        return self.digits > 0


DTYPES = {
    "F64": Kind(64, 53, -1022),
    "F32": Kind(32, 24, -126),
    "F16": Kind(16, 11, -14),
    "BF16": Kind(16, 8, -126),
    "F8_E4M3": Kind(8, 4, -6),
    "F8_E5M2": Kind(8, 3, -14),
    "F8_E8M0": Kind(8, 1, -127),
    "BOOL": Kind(8),
    "U8": Kind(8),
    "I8": Kind(8),
    "U16": Kind(16),
    "I16": Kind(16),
    "U32": Kind(32),
    "I32": Kind(32),
    "U64": Kind(64),
    "I64": Kind(64),
}
TORCH = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
}
_PLAIN = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "u1", "U8": "u1", "I8": "i1", "U16": "<u2",
    "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
}  # fmt: skip


def decode(data: bytes, dtype: str) -> Floats:
    """float64[n] of the bytes of a tensor."""
    if dtype == "BF16":
        words = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
        return words.view(np.float32).astype(np.float64)
    if dtype in _PLAIN:
        return np.frombuffer(data, _PLAIN[dtype]).astype(np.float64)
    return np.asarray(_table(dtype)[np.frombuffer(data, np.uint8)])


@lru_cache(maxsize=8)
def _table(dtype: str) -> Floats:
    """float64[256]: the value of each code of an 8-bit format."""
    return np.array([_eight_bits(code, dtype) for code in range(256)])


def _eight_bits(code: int, dtype: str) -> float:
    if dtype == "F8_E8M0":
        return float("nan") if code == 255 else 2.0 ** (code - 127)
    fraction_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    sign = -1.0 if code & 128 else 1.0
    fraction = code & (2**fraction_bits - 1)
    exponent = (code & 127) >> fraction_bits
    top = 127 >> fraction_bits
    if dtype == "F8_E4M3" and code & 127 == 127:
        return float("nan")
    if dtype == "F8_E5M2" and exponent == top:
        return float("nan") if fraction else sign * float("inf")
    if exponent == 0:
        return float(sign * fraction * 2.0 ** (1 - bias - fraction_bits))
    return float(sign * (2**fraction_bits + fraction) * 2.0 ** (exponent - bias - fraction_bits))


FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""E2M1: a sign, two bits of exponent and one of fraction."""


def spacing(values: Floats, dtype: str) -> Floats:
    """Distance of neighbouring numbers of a format around each value (of its binade)."""
    kind = DTYPES[dtype]
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    binade = np.maximum(exponent - 1, kind.lowest)
    return np.asarray(np.ldexp(1.0, binade - (kind.digits - 1)))


def round_to(values: Floats, dtype: str) -> Floats:
    """Each value rounded to the nearest number of a format, ties to even; float64."""
    if dtype == "F64":
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "F32":
            return values.astype(np.float32).astype(np.float64)
        if dtype == "F16":
            return values.astype(np.float16).astype(np.float64)
        step = spacing(values, dtype)
        nearest = np.asarray(np.rint(values / step) * step)
    largest = _largest(dtype)
    return np.where(np.abs(nearest) > largest, np.sign(values) * np.inf, nearest)


def _largest(dtype: str) -> float:
    return {"BF16": 255 * 2.0**120, "F8_E4M3": 448.0, "F8_E5M2": 57344.0}.get(dtype, np.inf)


def encode(values: Floats, dtype: str) -> bytes:
    """The bytes of float64 values rounded to a format of 16 bits and more, or to whole numbers."""
    if dtype == "BF16":
        numbers = round_to(np.ascontiguousarray(values), dtype).astype(np.float32)
        return (numbers.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values).astype(_PLAIN[dtype]).tobytes()
