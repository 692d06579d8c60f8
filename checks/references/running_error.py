"""Numbers with a bound on what rounding can have done to them: running error analysis.

Source: Wilkinson; Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.3. A formula is
written once over `Bounded` values. Its value is computed in float64; beside it runs a first-order bound on
the distance to the same formula computed in a narrower dtype that rounds every operation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.rules import SUMMATION_DEVIATIONS

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bounded:
    """``value`` and ``error`` (absolute) float64[...]; ``unit`` the unit roundoff of each operation."""

    value: Array
    error: Array
    unit: float

    @classmethod
    def exact(cls, value: Any, unit: float) -> "Bounded":
        """A number that was recorded, and so carries no error."""
        array = np.asarray(value, np.float64)
        return cls(array, np.zeros_like(array), unit)

    def _rounded(self, value: Array, error: Array) -> "Bounded":
        return Bounded(value, error + self.unit * np.abs(value), self.unit)

    def plus(self, other: "Bounded") -> "Bounded":
        """The sum, rounded once."""
        return self._rounded(self.value + other.value, self.error + other.error)

    def times(self, other: "Bounded") -> "Bounded":
        """The product, rounded once."""
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return self._rounded(self.value * other.value, error)

    def scaled(self, factor: float) -> "Bounded":
        """The product with a scalar that is itself rounded to the dtype."""
        value = self.value * factor
        return self._rounded(value, self.error * abs(factor) + self.unit * np.abs(value))

    def raised(self, constant: float) -> "Bounded":
        """The sum with a scalar that is itself rounded to the dtype."""
        return self._rounded(self.value + constant, self.error + self.unit * abs(constant))

    def over(self, other: "Bounded") -> "Bounded":
        """The quotient, rounded once; unbounded where the divisor may be zero."""
        low = np.abs(other.value) - other.error
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.value / other.value
            error = np.where(low > 0, (self.error + np.abs(value) * other.error) / low, np.inf)
        still = (self.value == 0) & (self.error == 0)
        return self._rounded(np.where(still, 0.0, value), np.where(still, 0.0, error))

    def root(self) -> "Bounded":
        """The square root of a number that is not negative, rounded once."""
        value = np.sqrt(np.maximum(self.value, 0))
        high = np.sqrt(np.maximum(self.value, 0) + self.error) - value
        low = value - np.sqrt(np.maximum(self.value - self.error, 0))
        return self._rounded(value, np.maximum(high, low))

    def mean(self, axis: int | None = None, *, keepdims: bool = False) -> "Bounded":
        """The mean of ``n`` numbers that are not negative.

        Its own rounding is at most SUMMATION_DEVIATIONS * sqrt(n) units of the accumulator, which is
        float32 or wider in every implementation met, and one unit of the dtype.
        """
        count = self.value.size if axis is None else self.value.shape[axis]
        value = np.asarray(self.value.mean(axis=axis, keepdims=keepdims))
        summed = SUMMATION_DEVIATIONS * np.sqrt(count) * min(self.unit, 2.0**-24) * np.abs(value)
        return self._rounded(value, np.asarray(self.error.mean(axis=axis, keepdims=keepdims)) + summed)

    def at_least(self, low: float) -> "Bounded":
        """The larger of the number and a constant."""
        return Bounded(np.maximum(self.value, low), self.error, self.unit)

    def shaped(self, *index: Any) -> "Bounded":
        """The same numbers under another index, such as a new axis."""
        return Bounded(self.value[index], self.error[index], self.unit)
