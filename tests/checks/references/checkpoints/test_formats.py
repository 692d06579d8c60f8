"""Codes to numbers and back, against torch's own dtypes and values worked out by hand."""

import hashlib

import numpy as np
import pytest
import torch

from checks.references.checkpoints.formats import E2M1, FORMATS, decode, encoded, rounded
from checks.references.checkpoints.tensors import MemorySource, Tensor, state_digest

TORCH = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}


@pytest.mark.parametrize("name", TORCH)
def test_every_code_is_the_number_that_torch_reads(name: str) -> None:
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits, dtype=fmt.code)
    signed = torch.from_numpy(codes.view(f"i{fmt.bits // 8}").copy())
    wanted = signed.view(TORCH[name]).to(torch.float32).numpy()
    found = decode(codes, fmt)
    np.testing.assert_array_equal(found, wanted)
    same_sign = np.signbit(found) == np.signbit(wanted)
    assert same_sign[~np.isnan(found)].all()


@pytest.mark.parametrize("name", TORCH)
def test_what_is_no_finite_number_is_exactly_what_the_bound_says(name: str) -> None:
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits, dtype=np.int64)
    magnitude = codes & ~fmt.sign
    np.testing.assert_array_equal(
        magnitude >= fmt.infinity, ~np.isfinite(decode(codes.astype(fmt.code), fmt))
    )


def test_the_sixteen_values_of_fp4() -> None:
    assert E2M1.tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert (E2M1[8:] == -E2M1[:8]).all()
    assert np.signbit(E2M1[8])


@pytest.mark.parametrize("name", ["BF16", "F16"])
def test_rounding_is_torchs_rounding(name: str) -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    halves = np.array([1.00390625, 1.01171875, 65520.0, 3.4e38, -0.0, 1e-45, np.inf], np.float32)
    values = np.concatenate([values, halves])
    wanted = torch.from_numpy(values).to(TORCH[name])
    np.testing.assert_array_equal(rounded(values, FORMATS[name]), wanted.to(torch.float32).numpy())
    finite = np.isfinite(values)
    bits = wanted.view(torch.int16).numpy().view(np.uint16)
    assert np.frombuffer(encoded(values[finite], FORMATS[name]), np.uint16).tolist() == bits[finite].tolist()


def test_float64_is_rounded_once_to_bfloat16() -> None:
    """1 + 2^-8 + 2^-40 is above the midpoint; through float32 it would fall on it and go to even, 1."""
    values = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 2.0**-8])
    assert rounded(values, FORMATS["BF16"]).tolist() == [1 + 2.0**-7, 1.0, 1.0]


def test_the_state_digest_covers_dtype_shape_and_bytes() -> None:
    data = bytes(range(16))
    digest = state_digest("BF16", (2, 4), data)
    assert digest == hashlib.sha256(b"BF16[2,4]" + data).hexdigest()
    assert digest != state_digest("BF16", (4, 2), data)
    assert digest != state_digest("F16", (2, 4), data)
    assert Tensor("t", "BF16", (2, 4), MemorySource(data)).digest() == digest
