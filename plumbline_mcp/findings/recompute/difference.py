"""What kind of difference two arrays of one shape show: it names a fault, and never judges one."""

import hashlib

import numpy as np

from plumbline_mcp.findings.recompute.decoding import Floats, round_to


def named_difference(right: Floats, found: Floats) -> str:
    """The kind of a difference between two arrays of one shape."""
    square = right.ndim >= 2 and right.shape[-1] == right.shape[-2]
    if square and np.array_equal(np.swapaxes(right, -1, -2), found):
        return "transposed"
    if not found.any():
        return "zeroed"
    if found.size > 1 and np.all(found == 1):
        return "re-initialised"
    if right.ndim >= 2 and right.shape[0] > 1 and _same_slices(right, found):
        return "permuted"
    if any(np.array_equal(round_to(right, dtype), found) for dtype in ("BF16", "F16")):
        return "rounded-on-its-way"
    flat, other = right.reshape(-1), found.reshape(-1)
    first = int(np.argmax(flat != other))
    tail = other[first:]
    if first and tail.size > 1 and (np.all(tail == tail[0]) or np.isnan(tail).all()):
        return "truncated"
    differs = flat != other
    if differs.sum() >= 8 and np.all(flat[differs] != 0) and np.isfinite(other).all():
        ratios = other[differs] / flat[differs]
        steps = np.unique(np.rint(np.log2(np.maximum(ratios, 2.0**-200)) * 64))
        if ratios.min() > 0 and len(steps) <= max(1, min(64, int(differs.sum()) // 32)):
            return "wrong-scale"
    return "values-differ"


def _same_slices(right: Floats, found: Floats) -> bool:
    """Whether the slices of the first axis are the same ones in another order."""
    one = sorted(hashlib.sha256(np.ascontiguousarray(each).tobytes()).digest() for each in right)
    other = sorted(hashlib.sha256(np.ascontiguousarray(each).tobytes()).digest() for each in found)
    return one == other
