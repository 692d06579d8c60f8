"""Interval arithmetic with outward rounding: where a computation in a narrower dtype may end.

Source: Moore, Kearfott and Cloud 2009, *Introduction to Interval Analysis*, section 1.2. Each operation
gives every value that rounded operands may give, and is widened by ``ROUNDINGS`` unit roundoffs: one for its
own rounding, one for a kernel that splits or reorders it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import Floats

ROUNDINGS = 2.0
SUMMATION = 8.0
"""A sum of n terms rounds by at most 8 sqrt(n) units (Higham and Mary 2019, theorem 2.4; 3e-14 to exceed)."""


@dataclass(frozen=True)
class Interval:
    """``low`` <= true result <= ``high``, float64[...]; ``unit`` the unit roundoff of each operation."""

    low: Floats
    high: Floats
    unit: float

    @classmethod
    def of(cls, values: Any, unit: float) -> "Interval":
        """Recorded numbers: exact."""
        array = np.asarray(values, np.float64)
        return cls(array, array, unit)

    @property
    def middle(self) -> Floats:
        """The midpoint."""
        return np.asarray((self.low + self.high) / 2)

    @property
    def radius(self) -> Floats:
        """Half the width."""
        return np.asarray((self.high - self.low) / 2)

    def widened(self, relative: float, absolute: float = 0.0) -> "Interval":
        """Wider by so much of the larger end, and by an absolute amount."""
        more = relative * np.maximum(np.abs(self.low), np.abs(self.high)) + absolute
        return Interval(self.low - more, self.high + more, self.unit)

    def _rounded(self, low: Floats, high: Floats, times: float = 1.0) -> "Interval":
        return Interval(low, high, self.unit).widened(times * ROUNDINGS * self.unit)

    def __add__(self, other: "Interval") -> "Interval":
        return self._rounded(self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Interval") -> "Interval":
        return self._rounded(self.low - other.high, self.high - other.low)

    def __mul__(self, other: "Interval") -> "Interval":
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return self._rounded(np.minimum.reduce(ends), np.maximum.reduce(ends))

    def squared(self) -> "Interval":
        """The square, never negative."""
        ends = np.minimum(self.low**2, self.high**2), np.maximum(self.low**2, self.high**2)
        across = (self.low <= 0) & (self.high >= 0)
        return self._rounded(np.where(across, 0.0, ends[0]), ends[1]).clamped(0.0)

    def times(self, constant: float) -> "Interval":
        """The product with a scalar that is itself rounded to the dtype."""
        one, other = self.low * constant, self.high * constant
        return self._rounded(np.minimum(one, other), np.maximum(one, other), 2.0)

    def raised(self, constant: float) -> "Interval":
        """The sum with a scalar that is itself rounded to the dtype."""
        rounded = ROUNDINGS * self.unit * abs(constant)
        return self._rounded(self.low + constant - rounded, self.high + constant + rounded)

    def over(self, other: "Interval") -> "Interval":
        """The quotient by positive numbers; unbounded where the divisor may be 0, 0 of an exact 0."""
        still = (self.low == 0) & (self.high == 0)
        apart = other.low > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        low = np.where(apart, np.minimum.reduce(ends), -np.inf)
        high = np.where(apart, np.maximum.reduce(ends), np.inf)
        return self._rounded(np.where(still, 0.0, low), np.where(still, 0.0, high))

    def root(self) -> "Interval":
        """The square root; what rounding made negative is 0."""
        low, high = np.sqrt(np.maximum(self.low, 0)), np.sqrt(np.maximum(self.high, 0))
        return self._rounded(low, high).clamped(0.0)

    def mean(self, axis: int | None = None, *, keepdims: bool = False) -> "Interval":
        """The mean of numbers that are not negative, summed in float32 or wider."""
        count = self.low.size if axis is None else self.low.shape[axis]
        low = np.asarray(self.low.mean(axis=axis, keepdims=keepdims))
        high = np.asarray(self.high.mean(axis=axis, keepdims=keepdims))
        summed = SUMMATION * np.sqrt(count) * min(self.unit, 2.0**-24)
        return Interval(low, high, self.unit).widened(ROUNDINGS * (summed + self.unit))

    def clamped(self, least: float) -> "Interval":
        """The larger of the number and a constant."""
        return Interval(np.maximum(self.low, least), np.maximum(self.high, least), self.unit)

    def at(self, *index: Any) -> "Interval":
        """The same numbers under another index, such as a new axis."""
        return Interval(self.low[index], self.high[index], self.unit)
