"""Views of arranged tensors give the rows that numpy gives, whatever rows are asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from checks.loading.arrangements import Cut, Interleaved, Joined, Stacked, Unfit
from checks.references.checkpoints.layouts import Plain, Transposed, Values, grid
from checks.references.checkpoints.tensors import MemorySource, Tensor

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> tuple[Any, Values]:
    array = RANDOM.normal(size=shape).astype(np.float32)
    return array, Plain(Tensor("t", "F32", shape, MemorySource(array.tobytes())))


def assert_same(view: Values, wanted: Any) -> None:
    """Every stretch of rows, not only the whole."""
    rows, columns = grid(view.shape)
    assert view.shape == wanted.shape
    flat = wanted.reshape(rows, columns)
    for first in range(rows):
        for last in range(first + 1, rows + 1):
            np.testing.assert_array_equal(view.rows(first, last), flat[first:last])


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_a_stack(shape: tuple[int, ...]) -> None:
    arrays, views = zip(*(values(*shape) for _ in range(3)), strict=True)
    assert_same(Stacked(views), np.stack(arrays))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joined_along_each_axis(axis: int) -> None:
    shapes = [(2, 3, 4), tuple(length + (axis == index) for index, length in enumerate((2, 3, 4)))]
    arrays, views = zip(*(values(*shape) for shape in shapes), strict=True)
    assert_same(Joined(views, axis), np.concatenate(arrays, axis))


def test_joined_vectors() -> None:
    arrays, views = zip(values(3), values(5), strict=True)
    assert_same(Joined(views, 0), np.concatenate(arrays))


@pytest.mark.parametrize(
    ("shape", "axis"), [((4,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4), 1)]
)
@pytest.mark.parametrize("parts", [2, 3])
def test_interleaved(shape: tuple[int, ...], axis: int, parts: int) -> None:
    arrays, views = zip(*(values(*shape) for _ in range(parts)), strict=True)
    wanted_shape = [*shape]
    wanted_shape[axis] *= parts
    assert_same(Interleaved(views, axis), np.stack(arrays, axis + 1).reshape(wanted_shape))


@pytest.mark.parametrize(
    ("shape", "axis"), [((6,), 0), ((6, 4), 0), ((3, 6), 1), ((2, 6, 3), 1), ((6, 2, 3), 0)]
)
def test_cut(shape: tuple[int, ...], axis: int) -> None:
    array, view = values(*shape)
    assert_same(Cut(view, axis, 1, 5), np.take(array, range(1, 5), axis))


def test_views_of_views() -> None:
    gates, views = zip(*(values(3, 4) for _ in range(2)), strict=True)
    ups, others = zip(*(values(3, 4) for _ in range(2)), strict=True)
    view = Transposed(Joined((Stacked(views), Stacked(others)), 1))
    assert_same(view, np.concatenate([np.stack(gates), np.stack(ups)], 1).transpose(0, 2, 1))


REFUSED: list[Callable[[], object]] = [
    lambda: Stacked((values(2, 3)[1], values(3, 2)[1])),
    lambda: Joined((values(2, 3)[1], values(3, 2)[1]), 0),
    lambda: Joined((values(2)[1], values(2)[1]), 1),
    lambda: Interleaved((values(2, 3)[1], values(3, 3)[1]), 0),
    lambda: Cut(values(4)[1], 0, 2, 5),
]


@pytest.mark.parametrize("make", REFUSED)
def test_shapes_that_do_not_fit_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(Unfit):
        make()
