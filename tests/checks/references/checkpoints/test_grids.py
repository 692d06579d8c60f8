"""A coarser grid: found for each usual block of a quantiser, and for nothing else."""

from dataclasses import dataclass

import numpy as np
import pytest

from checks.references.checkpoints.grids import coarser_grid


@dataclass(frozen=True)
class Numbers:
    """Values held in memory."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def rows(self, first: int, last: int) -> np.ndarray:
        return self.values.reshape(-1, self.values.shape[-1])[first:last]


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to the upper half of the bits of a float32, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


WEIGHTS = bfloat16(np.random.default_rng(0).normal(0, 0.02, (256, 1024)))


def quantised(height: int, width: int, largest: int) -> np.ndarray:
    blocks = WEIGHTS.reshape(256 // height, height, 1024 // width, width).transpose(0, 2, 1, 3)
    scale = np.abs(blocks).max(axis=(2, 3), keepdims=True) / largest
    return bfloat16((np.round(blocks / scale) * scale).transpose(0, 2, 1, 3).reshape(256, 1024))


@pytest.mark.parametrize(
    ("height", "width", "largest", "said"),
    [
        (256, 1024, 127, "256 distinct values in the tensor"),
        (1, 1024, 127, "256 distinct values in each row"),
        (128, 128, 127, "256 distinct values in each block of 128 x 128"),
        (1, 1024, 7, "16 distinct values in each row"),
        (1, 128, 7, "16 distinct values in each 128 values of a row"),
        (1, 32, 7, "16 distinct values in each 32 values of a row"),
    ],
)
def test_each_block_of_a_quantiser_is_recognised(height: int, width: int, largest: int, said: str) -> None:
    found = coarser_grid(Numbers(WEIGHTS), Numbers(quantised(height, width, largest)))
    assert found == f"at most {said}"


def test_trained_weights_lie_on_no_coarser_grid() -> None:
    step = np.random.default_rng(1).normal(0, 0.001, WEIGHTS.shape)
    assert coarser_grid(Numbers(WEIGHTS), Numbers(bfloat16(WEIGHTS + step))) is None


def test_an_original_that_lies_on_the_grid_itself_shows_nothing() -> None:
    coarse = quantised(1, 1024, 127)
    assert coarser_grid(Numbers(coarse), Numbers(coarse * 1.25)) is None
    assert coarser_grid(Numbers(WEIGHTS[0]), Numbers(quantised(1, 1024, 7)[0])) is None
