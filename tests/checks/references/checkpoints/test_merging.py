"""Adapters: W + sBA and its bound, against merges done with torch, and what we refuse to merge."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.errors import NotEvaluated
from checks.references.checkpoints.comparing import compare_bounded
from checks.references.checkpoints.formats import FORMATS
from checks.references.checkpoints.layouts import Plain
from checks.references.checkpoints.merging import MergeBound, Merged, read_adapter
from checks.references.checkpoints.tensors import MemorySource, Tensor

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def _write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    generator = torch.Generator().manual_seed(0)
    default = {
        f"{Q}.lora_A.weight": torch.randn(4, 24, generator=generator),
        f"{Q}.lora_B.weight": torch.randn(16, 4, generator=generator),
    }
    save_file(tensors if tensors is not None else default, folder / "adapter_model.safetensors")
    return folder


def _tensor(value: torch.Tensor) -> Tensor:
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}
    data = value.contiguous().view(torch.uint8).numpy().tobytes()
    return Tensor("w", names[value.dtype], tuple(value.shape), MemorySource(data))


def test_the_merge_is_w_plus_s_b_a_in_float64(tmp_path: Path) -> None:
    update = read_adapter(_write(tmp_path / "x")).updates["model.layers.0.self_attn.q_proj"]
    base = torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    stored = load_file(tmp_path / "x" / "adapter_model.safetensors")
    a, b = (stored[f"{Q}.lora_{side}.weight"].double() for side in "AB")
    wanted = base.double() + 2.0 * (b @ a)
    merged = Merged(Plain(_tensor(base)), update)
    np.testing.assert_allclose(merged.rows(0, 16), wanted.numpy(), rtol=1e-14)
    np.testing.assert_allclose(merged.rows(3, 5), wanted[3:5].numpy(), rtol=1e-14)


@pytest.mark.parametrize("base_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("work_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cast_first", [False, True])
def test_the_bound_holds_every_honest_merge_and_no_missing_one(
    tmp_path: Path, base_dtype: torch.dtype, work_dtype: torch.dtype, cast_first: bool
) -> None:
    """Merges done in several orders of rounding lie within it; scale 0.9, scale 0 and a wrong row do not."""
    if work_dtype == torch.bfloat16 and base_dtype != torch.bfloat16:
        pytest.skip("frameworks do not compute the update in a narrower format than the base")
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(64, 96, generator=generator).to(base_dtype)
    a, b = torch.randn(4, 96, generator=generator) * 0.3, torch.randn(64, 4, generator=generator) * 0.3
    tensors = {f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b}
    update = next(iter(read_adapter(_write(tmp_path / "x", tensors)).updates.values()))
    dtype = base_dtype if cast_first else work_dtype
    change = ((b.to(dtype) @ a.to(dtype)) * 2.0).to(base_dtype)
    found = base + change
    merged = Merged(Plain(_tensor(base)), update)
    bound = MergeBound(merged, FORMATS[_tensor(base).dtype])
    compared, worst = compare_bounded(merged, Plain(_tensor(found)), bound)
    assert compared.differing == 0
    assert worst <= 1
    for wrong in (base, base + (change.float() * 0.9).to(base_dtype), base + change.roll(1, 0)):
        assert compare_bounded(merged, Plain(_tensor(wrong)), bound)[0].differing > 1000


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 32}}, 8.0),
        ({"alpha_pattern": {"model.layers.0.self_attn.q_proj": 16, "q_proj": 99}}, 4.0),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 16}}, 4.0),
        ({"alpha_pattern": {"^q_proj": 16}}, 2.0),
        ({"alpha_pattern": {"proj": 16}}, 2.0),
        ({"r": 9, "rank_pattern": {"q_proj": 4}}, 2.0),
    ],
)
def test_the_scale_follows_the_configuration(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    adapter = read_adapter(_write(tmp_path / "x", **config))
    assert adapter.updates["model.layers.0.self_attn.q_proj"].scale == scale


def test_embeddings_and_fan_in_fan_out_are_laid_the_other_way(tmp_path: Path) -> None:
    a, b = torch.randn(4, 10), torch.randn(6, 4)
    tensors = {"base_model.model.e.lora_embedding_A": a, "base_model.model.e.lora_embedding_B": b}
    update = read_adapter(_write(tmp_path / "x", tensors)).updates["e"]
    wanted = (b.double() @ a.double()).T.numpy()
    np.testing.assert_allclose(update.left @ update.right, wanted)
    turned = {"base_model.model.e.lora_A.weight": a, "base_model.model.e.lora_B.weight": b}
    update = read_adapter(_write(tmp_path / "y", turned, fan_in_fan_out=True)).updates["e"]
    np.testing.assert_allclose(update.left @ update.right, wanted)


def test_tensors_stored_whole_are_replaced_under_the_names_of_the_release(tmp_path: Path) -> None:
    tensors = {
        "base_model.model.model.embed_tokens.weight": torch.ones(3, 2),
        "base_model.model.lm_head.modules_to_save.default.weight": torch.ones(3, 2),
        "base_model.model.model.norm.base_layer.weight": torch.ones(2),
    }
    adapter = read_adapter(_write(tmp_path / "x", tensors))
    assert set(adapter.replaced) == {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}


def test_an_adapter_whose_b_is_zero_changes_nothing(tmp_path: Path) -> None:
    tensors = {f"{Q}.lora_A.weight": torch.ones(4, 24), f"{Q}.lora_B.weight": torch.zeros(16, 4)}
    assert next(iter(read_adapter(_write(tmp_path / "x", tensors)).updates.values())).is_zero


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "LOHA"}, "only LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"lora_bias": True}, "lora_bias"),
        ({"something_new": 3}, "something_new"),
        ({"init_lora_weights": "pissa"}, "changes the base weights"),
        ({"r": 5}, "has rank 4"),
        ({"lora_alpha": "8"}, "no number"),
        ({"alpha_pattern": {"(q|(q+)+)_proj": 8}}, "no plain module name"),
    ],
)
def test_what_we_cannot_merge_is_not_evaluated(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(NotEvaluated, match=says):
        read_adapter(_write(tmp_path / "x", **config))


def test_halves_of_an_adapter_are_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(NotEvaluated, match="not an A and a B"):
        read_adapter(_write(tmp_path / "x", {f"{Q}.lora_A.weight": torch.ones(4, 24)}))
    tensors = {f"{Q}.lora_A.weight": torch.ones(4, 24), f"{Q}.lora_B.weight": torch.zeros(16, 3)}
    with pytest.raises(NotEvaluated, match="do not multiply"):
        read_adapter(_write(tmp_path / "x", tensors))
    with pytest.raises(NotEvaluated, match="holds no tensor"):
        read_adapter(_write(tmp_path / "x", {}))
