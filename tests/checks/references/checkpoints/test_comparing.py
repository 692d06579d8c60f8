"""Comparing two tensors, and naming what is different about them."""

import json
from pathlib import Path

import numpy as np
import pytest

from checks.references.checkpoints.comparing import compare_codes, compare_values
from checks.references.checkpoints.differences import Kind, classify
from checks.references.checkpoints.layouts import Plain
from checks.references.checkpoints.tensors import PIECE, FileSource, MemorySource, Tensor

NAMES = {
    "float32": "F32",
    "float16": "F16",
    "uint16": "BF16",
    "int64": "I64",
    "float64": "F64",
    "uint8": "U8",
}


def _tensor(array: np.ndarray, name: str = "t") -> Tensor:
    return Tensor(name, NAMES[str(array.dtype)], array.shape, MemorySource(array.tobytes()))


def _kind(original: np.ndarray, found: np.ndarray) -> Kind:
    left, right = Plain(_tensor(original)), Plain(_tensor(found))
    return classify(left, right, compare_values(left, right))


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_minus_zero_equals_zero_and_is_counted() -> None:
    left = np.array([0.0, -0.0, 1.0, -1.0], np.float32)
    right = np.array([-0.0, 0.0, 1.0, 1.0], np.float32)
    compared = compare_codes(_tensor(left), _tensor(right))
    assert (compared.zero_signs, compared.differing, compared.first) == (2, 1, 3)
    as_numbers = compare_values(Plain(_tensor(left)), Plain(_tensor(right)))
    assert (as_numbers.zero_signs, as_numbers.differing) == (2, 1)
    integers = compare_codes(_tensor(np.array([0], np.int64)), _tensor(np.array([-(2**63)], np.int64)))
    assert integers.differing == 1


def test_not_a_number_equals_its_own_bits_and_is_counted() -> None:
    left = np.array([np.nan, np.inf, 1.0, 2.0], np.float32)
    same = compare_codes(_tensor(left), _tensor(left.copy()))
    assert (same.equal, same.non_finite, same.introduced) == (True, 2, 0)
    right = np.array([np.nan, np.inf, np.nan, 2.0], np.float32)
    assert compare_codes(_tensor(left), _tensor(right)).introduced == 1


def test_a_difference_in_any_piece_of_a_file_is_found_where_it_is(tmp_path: Path) -> None:
    data = np.arange(3 * PIECE // 2 + 7, dtype=np.uint16) & 0x3FFF
    (tmp_path / "a").write_bytes(b"head" + data.tobytes())
    for place in (0, PIECE // 2 - 1, PIECE // 2, data.size - 1):
        changed = data.copy()
        changed[place] ^= 1
        (tmp_path / "b").write_bytes(changed.tobytes())
        left = Tensor("t", "BF16", data.shape, FileSource(tmp_path / "a", 4))
        right = Tensor("t", "BF16", data.shape, FileSource(tmp_path / "b", 0))
        compared = compare_codes(left, right)
        assert (compared.differing, compared.first, compared.elements) == (1, place, data.size)


def test_how_far_two_tensors_are_apart(random: np.random.Generator) -> None:
    left, right = random.standard_normal((2, 50, 70))
    compared = compare_values(Plain(_tensor(left)), Plain(_tensor(right)))
    assert compared.change == pytest.approx(np.linalg.norm(right - left) / np.linalg.norm(left))
    cosine = (left * right).sum() / np.linalg.norm(left) / np.linalg.norm(right)
    assert compared.cosine == pytest.approx(cosine)
    assert compared.largest == np.abs(right - left).max()


def test_transposed_square_matrices_are_named_also_for_single_experts(random: np.random.Generator) -> None:
    square = random.standard_normal((16, 16)).astype(np.float32)
    assert _kind(square, square.T.copy()).code == "transposed"
    experts = random.standard_normal((5, 16, 16)).astype(np.float32)
    turned = experts.copy()
    turned[3] = experts[3].T
    kind = _kind(experts, turned)
    assert kind.code == "transposed"
    assert "1 of 5 matrices (3)" in kind.message


def test_a_transposed_matrix_is_named_after_training_too(random: np.random.Generator) -> None:
    square = random.standard_normal((32, 32)).astype(np.float32)
    trained = square + 0.05 * random.standard_normal((32, 32)).astype(np.float32)
    assert _kind(square, trained.T.copy()).code == "transposed"
    assert not _kind(square, trained).structured


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([1, 0, 2, 3, 4, 5], "2 of 6"),
        ([1, 2, 3, 4, 5, 0], "shifted by one"),
        ([3, 4, 5, 0, 1, 2], "halves swapped"),
        ([1, 0, 3, 2, 5, 4], "neighbours swapped"),
        ([0, 2, 4, 1, 3, 5], "interleaved pairs taken apart"),
        ([0, 3, 1, 4, 2, 5], "halves interleaved"),
    ],
)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_permuted_slices_are_named_on_every_axis(
    random: np.random.Generator, order: list[int], says: str, axis: int
) -> None:
    shape = [4, 5, 7]
    shape[axis] = 6
    original = random.standard_normal(shape).astype(np.float32)
    kind = _kind(original, np.take(original, order, axis=axis))
    assert kind.code == "permuted"
    assert says in kind.message
    assert ("experts" in kind.message) == (axis == 0)


def test_what_was_done_to_every_element_is_named(random: np.random.Generator) -> None:
    original = random.standard_normal((20, 30)).astype(np.float32)
    narrow = (original.view(np.uint32) & 0xFFFF0000).view(np.float32)
    cases = {
        "-1 times": -original,
        "1.5 times": original * np.float32(1.5),
        "1 was added": original + np.float32(1),
        "every value is zero": np.zeros_like(original),
        "every value is 1": np.ones_like(original),
        "rounded to F16": original.astype(np.float16).astype(np.float32),
        "re-initialised?": random.standard_normal((20, 30)).astype(np.float32),
    }
    for says, found in cases.items():
        kind = _kind(original, found)
        assert (kind.code, kind.structured) == ("values-differ", True), says
        assert says in kind.message
    assert "rounded to BF16" in _kind(original, _nearest_bfloat16(original)).message
    assert "rounded" not in _kind(original, narrow).message


def _nearest_bfloat16(values: np.ndarray) -> np.ndarray:
    import torch

    return torch.from_numpy(values).to(torch.bfloat16).float().numpy()


def test_one_far_element_is_a_plain_difference(random: np.random.Generator) -> None:
    original = random.standard_normal((20, 30)).astype(np.float32)
    found = original.copy()
    found[3, 4] += 1
    kind = _kind(original, found)
    assert (kind.code, kind.structured) == ("values-differ", False)
    assert "1 of 600 elements differ" in kind.message
    json.dumps(kind.message)
