"""Low-precision layouts against the reference's dequantizers and vectors worked out by hand."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from checks.references.checkpoints.formats import FORMATS, rounded
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.layouts import Group, Transposed, Values, grid, groups
from checks.references.checkpoints.tensors import MemorySource, Tensor

DTYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
}


def _tensor(name: str, value: torch.Tensor) -> Tensor:
    data = value.contiguous().view(torch.uint8).numpy().tobytes()
    return Tensor(name, DTYPES[value.dtype], tuple(value.shape), MemorySource(data))


def _group(config: dict[str, object] | None = None, **tensors: torch.Tensor) -> Group:
    made = {name.replace("__", "."): value for name, value in tensors.items()}
    found = groups({name: _tensor(name, value) for name, value in made.items()}, config or {})
    assert len(found) == 1
    return next(iter(found.values()))


def _whole(values: Values, step: int) -> np.ndarray:
    def pieces() -> Iterator[np.ndarray]:
        rows = grid(values.shape)[0]
        for first in range(0, rows, step):
            yield values.rows(first, min(rows, first + step))

    return np.concatenate(list(pieces())).reshape(values.shape)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_mxfp4_equals_the_reference_in_its_in_memory_orientation(random: torch.Generator) -> None:
    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8, generator=random)
    scales = torch.randint(100, 140, (3, 8, 2), dtype=torch.uint8, generator=random)
    wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()
    group = _group(x__gate_up_proj_blocks=blocks, x__gate_up_proj_scales=scales)
    assert group.kind == "mxfp4"
    assert group.values.shape == (3, 8, 64)
    turned = Transposed(group.values)
    assert turned.shape == wanted.shape == (3, 64, 8)
    for step in (5, 64, 192):
        np.testing.assert_array_equal(_whole(turned, step), wanted)


def test_an_mxfp4_block_by_hand() -> None:
    """Byte 0x21: low nibble 1 (0.5) first, then 2 (1.0); 0xF9: -0.5 then -6; scale 128 doubles."""
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, :2] = torch.tensor([0x21, 0xF9], dtype=torch.uint8)
    group = _group(x_blocks=blocks, x_scales=torch.full((1, 1, 1), 128, dtype=torch.uint8))
    assert group.values.rows(0, 1)[0, :4].tolist() == [1.0, 2.0, -1.0, -12.0]
    assert group.values.rows(0, 1)[0, 4:].tolist() == [0.0] * 28


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float8_e8m0fnu])
def test_block_fp8_equals_the_reference_in_both_layouts(
    random: torch.Generator, scale_dtype: torch.dtype
) -> None:
    weight = torch.randn(64, 96, generator=random).to(torch.float8_e4m3fn)
    exponents = torch.randint(-8, 8, (2, 3), generator=random).float()
    scale = (
        torch.exp2(exponents) if scale_dtype != torch.float32 else torch.rand(2, 3, generator=random) + 0.1
    )
    scale = scale.to(scale_dtype)
    name = "p__weight_scale_inv" if scale_dtype == torch.float32 else "p__scale"
    group = _group(
        {"quantization_config": {"weight_block_size": [32, 32]}}, p__weight=weight, **{name: scale}
    )
    for dtype, fmt in ((torch.float32, "F32"), (torch.bfloat16, "BF16")):
        wanted = Fp8Dequantize(None)._dequantize_one(weight, scale, dtype).float().numpy()
        np.testing.assert_array_equal(rounded(_whole(group.values, 7), FORMATS[fmt]), wanted)
    exact = weight.double() * scale.double().repeat_interleave(32, 0).repeat_interleave(32, 1)
    np.testing.assert_array_equal(_whole(group.exact, 64), exact.numpy())


def test_ragged_last_blocks_of_fp8_use_the_last_scales() -> None:
    weight = torch.ones(33, 40).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    group = _group(
        {"quantization_config": {"weight_block_size": [32, 32]}}, p__weight=weight, p__weight_scale_inv=scale
    )
    values = _whole(group.values, 33)
    assert values[0, 31] == 1 and values[0, 32] == 2  # noqa: PT018 - one edge
    assert values[32, 0] == 4 and values[32, 39] == 8  # noqa: PT018 - one edge


def test_packed_fp4_equals_the_reference(random: torch.Generator) -> None:
    weight = torch.randint(-128, 128, (6, 32), dtype=torch.int8, generator=random)
    scale = torch.exp2(torch.randint(-6, 6, (6, 2), generator=random).float()).to(torch.float8_e8m0fnu)
    group = _group(p__weight=weight, p__scale=scale)
    assert group.kind == "fp4"
    wanted = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32).numpy()
    np.testing.assert_array_equal(_whole(group.values, 4), wanted)


def test_not_a_number_codes_stay_not_a_number() -> None:
    weight = torch.tensor([[0x7F, 0xFF, 0x38, 0x38]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.tensor([[127]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    config: dict[str, object] = {"quantization_config": {"weight_block_size": [32, 32]}}
    row = _group(config, p__weight=weight, p__scale=scale).values.rows(0, 1)[0]
    assert np.isnan(row).tolist() == [True, True, False, False]
    assert row[2] == 1.0
    broken = torch.tensor([[255]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert np.isnan(_group(config, p__weight=weight, p__scale=broken).values.rows(0, 1)).all()


@pytest.mark.parametrize(
    ("config", "weight", "scale"),
    [
        ({}, torch.zeros(64, 64).to(torch.float8_e4m3fn), torch.ones(3, 3)),
        (
            {"quantization_config": {"weight_block_size": [128, 128]}},
            torch.zeros(256, 256).to(torch.float8_e4m3fn),
            torch.ones(4, 4),
        ),
        ({}, torch.zeros(4, 32, dtype=torch.int8), torch.ones(4, 3).to(torch.float8_e8m0fnu)),
    ],
)
def test_scales_that_do_not_fit_are_an_error(
    config: dict[str, object], weight: torch.Tensor, scale: torch.Tensor
) -> None:
    """The reference accepts the second one: it divides the shapes, so a grid of another block size passes."""
    name = "p.weight_scale_inv" if scale.dtype == torch.float32 else "p.scale"
    tensors = {"p.weight": _tensor("p.weight", weight), name: _tensor(name, scale)}
    with pytest.raises(Unreadable, match="do not fit"):
        groups(tensors, config)


def test_blocks_without_their_scales_are_plain_tensors() -> None:
    blocks = torch.zeros(2, 4, 1, 16, dtype=torch.uint8)
    assert groups({"x_blocks": _tensor("x_blocks", blocks)}, {}) == {}
    scales = torch.zeros(2, 4, 2, dtype=torch.uint8)
    tensors = {"x_blocks": _tensor("x_blocks", blocks), "x_scales": _tensor("x_scales", scales)}
    with pytest.raises(Unreadable, match="do not fit"):
        groups(tensors, {})
