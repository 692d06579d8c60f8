"""The name map on the newest model types: what their own from_pretrained makes of tiny releases."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import FineGrainedFP8Config

from checks.references.names import compiled, load_names
from checks.references.packs import load_pack
from checks.verdict import Caught, Outcome
from tests.checks.export_pairs import edited
from tests.checks.loaded_runs import load_check, problem, recorded
from tests.checks.next_releases import CLASSES, CONFIGS, in_released_names, load_next, next_release
from tests.checks.verdict_parts import codes, part

NAMES = load_names(load_pack("transformers"))
STEM = {"deepseek_v4": "model", "qwen4_exp_text": "model"}
"""Where the layers lie; else below ``model.language_model``."""


def layers(model_type: str, model: Any) -> Any:
    return model.get_submodule(f"{STEM.get(model_type, 'model.language_model')}.layers")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("model_type", CLASSES)
def test_the_map_covers_a_model_type(model_type: str, dtype: str, tmp_path: Path) -> None:
    release = next_release(model_type, tmp_path / "release")
    run = recorded(tmp_path / "run", load_next(model_type, release, dtype), dtype=dtype)
    verdict = load_check(run, release)
    assert verdict.outcome is Outcome.PASS, verdict.problems()
    swapped = next(each for each in verdict.injected if each.fault == "two experts swapped")
    assert swapped.result is Caught.CAUGHT
    names = part(verdict, "names")
    assert names.coverage
    assert names.coverage.judged == names.coverage.total
    assert not any("does not cover" in note for note in names.notes)


@pytest.mark.parametrize("model_type", CLASSES)
def test_swaps_are_found_at_their_place(model_type: str, tmp_path: Path) -> None:
    release = next_release(model_type, tmp_path / "release")
    model = load_next(model_type, release, "bfloat16")
    stem = f"{STEM.get(model_type, 'model.language_model')}.layers.1"
    with torch.no_grad():
        experts = layers(model_type, model)[1].mlp.experts
        experts.down_proj[[1, 3]] = experts.down_proj[[3, 1]]
        experts.gate_up_proj.copy_(experts.gate_up_proj.roll(experts.gate_up_proj.shape[1] // 2, 1))
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert codes(verdict) == {("values", "permuted")}
    found = {p.place.tensor: p.message for _, p in verdict.problems()}
    assert set(found) == {f"{stem}.mlp.experts.down_proj", f"{stem}.mlp.experts.gate_up_proj"}
    assert "1 holds 3, 3 holds 1" in found[f"{stem}.mlp.experts.down_proj"]
    assert "halves swapped" in found[f"{stem}.mlp.experts.gate_up_proj"]


def test_the_release_itself_spells_deepseek_v4_otherwise(tmp_path: Path) -> None:
    release = in_released_names(next_release("deepseek_v4", tmp_path / "release"))
    names = set(load_file(release / "model.safetensors"))
    assert {"embed.weight", "head.weight", "hc_head_fn", "layers.1.attn.kv_norm.weight"} <= names
    assert not any(name.startswith("model.") for name in names)
    model = load_next("deepseek_v4", release, "bfloat16")
    assert load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release).outcome is Outcome.PASS
    with torch.no_grad():
        one, other = (model.model.layers[layer].self_attn.compressor.kv_proj.weight for layer in (1, 2))
        one[: len(other)], other[:] = other.clone(), one[: len(other)].clone()
    wrong = load_check(recorded(tmp_path / "wrong", model, dtype="bfloat16"), release)
    assert {p.place.tensor for _, p in wrong.problems()} == {
        f"model.layers.{layer}.self_attn.compressor.kv_proj.weight" for layer in (1, 2)
    }


def test_deepseek_v4_in_fp8_and_fp4(tmp_path: Path) -> None:
    script = Path(__file__).with_name("deepseek_release.py")
    command = [sys.executable, str(script), "v4", str(tmp_path / "release"), str(tmp_path / "export")]
    subprocess.run(command, check=True, capture_output=True)
    release = in_released_names(tmp_path / "release")
    for dtype in ("bfloat16", "float32"):
        how = FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32))
        model = load_next("deepseek_v4", release, dtype, quantization_config=how)
        verdict = load_check(recorded(tmp_path / dtype, model, dtype=dtype), release)
        assert verdict.outcome is Outcome.PASS, verdict.problems()
        caught = {each.fault: each.result for each in verdict.injected}
        assert caught["a wrong scale of a block"] is Caught.CAUGHT
        assert caught["two experts swapped"] is Caught.CAUGHT
    with torch.no_grad():
        model.model.layers[2].mlp.experts.down_proj[1, 3, :32].mul_(2)
    wrong = load_check(recorded(tmp_path / "wrong", model, dtype="float32"), release)
    assert problem(wrong, "wrong-scale").place.tensor == "model.layers.2.mlp.experts.down_proj"


@pytest.mark.parametrize("model_type", ["qwen4_exp_text", "qwen4_exp"])
def test_parts_of_a_table_of_ngrams_in_the_wrong_order(model_type: str, tmp_path: Path) -> None:
    release = next_release(model_type, tmp_path / "release")
    model = load_next(model_type, release, "bfloat16")
    table = layers(model_type, model)[1].ple.ple_embedding.ngram_embedding.weight
    rows = len(table) // 4
    with torch.no_grad():
        table[: 2 * rows] = torch.cat([table[rows : 2 * rows], table[:rows]])
    found = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release).problems()
    assert [p.place.tensor for _, p in found] == [
        f"{STEM.get(model_type, 'model.language_model')}.layers.1.ple.ple_embedding.ngram_embedding.weight"
    ]


def test_a_part_of_a_table_of_ngrams_that_the_release_lacks(tmp_path: Path) -> None:
    plain = next_release("qwen4_exp_text", tmp_path / "plain")
    run = recorded(tmp_path / "run", load_next("qwen4_exp_text", plain, "bfloat16"), dtype="bfloat16")
    name = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight"
    release = edited(plain, tmp_path / "release", lambda tensors: tensors.pop(name))
    verdict = load_check(run, release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "shard 2" in verdict.reason


def test_convolutions_joined_in_the_wrong_order(tmp_path: Path) -> None:
    release = next_release("glm5_next", tmp_path / "release")
    model = load_next("glm5_next", release, "bfloat16")
    weight = model.model.language_model.layers[0].self_attn.conv1d.weight
    with torch.no_grad():
        weight.copy_(torch.cat([weight[64:128], weight[:64], weight[128:]]))
    found = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release).problems()
    assert [p.place.tensor for _, p in found] == ["model.language_model.layers.0.self_attn.conv1d.weight"]


@pytest.mark.parametrize("recipe", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["deepseek_v4", "glm5_next"])
def test_what_the_pack_declares_kept_is_what_the_models_declare(model_type: str, recipe: torch.dtype) -> None:
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[model_type])(CONFIGS[model_type]())
    inner = next(m for m in model.modules() if getattr(m, "_keep_in_fp32_modules_strict", None))
    plan = list(model._get_dtype_plan(recipe) or inner._get_dtype_plan(recipe))
    declared = {
        name
        for name in model.state_dict()
        for pattern in plan
        if re.search(rf"(^|\.){re.escape(pattern)}($|\.)", name)
    }
    where = str(recipe).removeprefix("torch.")
    kept = [e for e in NAMES.kept if model_type in e.model_types and where in e.where]
    patterns = [pattern for entry in kept for pattern in entry.parameters]
    found = {n for n in model.state_dict() if any(compiled(p).fullmatch(n) for p in patterns)}
    assert found == declared != set()
