"""Whether values were rounded to a coarser grid on their way: a quantised export looks trained otherwise.

A code of b bits with one scale (and zero point) for a block of values gives at most 2^b distinct numbers in
that block, whatever the scale, the code's format (INT8, FP8, INT4, FP4, NF4) and the dtype that the numbers
are stored in afterwards. Training merges no values: a trained block holds about as many distinct numbers as
the original's.
"""

import math

import numpy as np
import numpy.typing as npt

from checks.references.checkpoints.formats import Floats
from checks.references.checkpoints.layouts import Values, grid
from checks.rules import COARSE_GRID_ELEMENTS, COARSE_GRID_FACTOR

_BLOCKS: tuple[tuple[int, str, int | None, int | None], ...] = (
    (16, "in the tensor", None, None),
    (16, "in each row", 1, None),
    (16, "in each 128 values of a row", 1, 128),
    (16, "in each 64 values of a row", 1, 64),
    (16, "in each 32 values of a row", 1, 32),
    (256, "in the tensor", None, None),
    (256, "in each row", 1, None),
    (256, "in each block of 128 x 128", 128, 128),
)
"""Levels, where they are counted, and rows and columns of a block (None: all)."""


def coarser_grid(expected: Values, found: Values) -> str | None:
    """The grid that ``found`` lies on and ``expected`` does not, in words; None where there is none.

    At most `COARSE_GRID_ELEMENTS` of the first rows are looked at.
    """
    if len(expected.shape) < 2 or math.prod(expected.shape) == 0:
        return None
    rows, columns = grid(expected.shape)
    last = min(rows, max(1, COARSE_GRID_ELEMENTS // columns))
    before, after = expected.rows(0, last), found.rows(0, last)
    for levels, where, height, width in _BLOCKS:
        if _lies_on(before, after, levels, height or last, width or columns):
            return f"at most {levels} distinct values {where}"
    return None


def _lies_on(before: Floats, after: Floats, levels: int, height: int, width: int) -> bool:
    if height > before.shape[0] or width > before.shape[1]:
        return False
    if height * width <= COARSE_GRID_FACTOR * levels or _distinct(after, height, width).max() > levels:
        return False
    return bool(np.median(_distinct(before, height, width)) > COARSE_GRID_FACTOR * levels)


def _distinct(values: Floats, height: int, width: int) -> npt.NDArray[np.int64]:
    """int64[blocks]: how many distinct numbers each whole block holds (-0.0 equals +0.0)."""
    down, across = values.shape[0] // height, values.shape[1] // width
    whole = values[: down * height, : across * width].reshape(down, height, across, width)
    blocks = np.sort(whole.transpose(0, 2, 1, 3).reshape(down * across, height * width), axis=1)
    return np.asarray(1 + np.count_nonzero(np.diff(blocks, axis=1), axis=1), dtype=np.int64)
