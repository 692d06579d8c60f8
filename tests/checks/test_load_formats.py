"""The name map and the decoders against what transformers' own from_pretrained makes of tiny releases."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config

from checks.references.names import compiled, load_names
from checks.references.packs import load_pack
from checks.verdict import Caught, Outcome
from tests.checks.export_pairs import edited
from tests.checks.loaded_runs import RunWriter, load_check, problem, recorded
from tests.checks.next_releases import CLASSES
from tests.checks.verdict_parts import codes, part

NAMES = load_names(load_pack("transformers"))
HIDDEN = 32
TINY: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
OF_TYPE: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 24},
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4,
    },
    "glm4_moe": {
        "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1,
    },
}  # fmt: skip


def release_of(model_type: str, folder: Path, dtype: torch.dtype = torch.bfloat16, **fields: Any) -> Path:
    """A tiny model of a type with random values in every parameter and buffer, as transformers saves it."""
    config = AutoConfig.for_model(model_type, **TINY | OF_TYPE.get(model_type, {}) | fields)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    generator = torch.Generator().manual_seed(3)
    buffers = [value for name, value in model.named_buffers() if name in model.state_dict()]
    with torch.no_grad():
        for value in [*model.parameters(), *buffers]:
            value.copy_((torch.randn(value.shape, generator=generator) * 0.1).to(value.dtype))
    model.save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: str, **how: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **how)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("model_type", [each for each in NAMES.covers if each not in CLASSES])
def test_the_map_covers_a_model_type(model_type: str, dtype: str, tmp_path: Path) -> None:
    release = release_of(model_type, tmp_path / "release")
    verdict = load_check(recorded(tmp_path / "run", loaded(release, dtype), dtype=dtype), release)
    assert verdict.outcome is Outcome.PASS
    stacked = any(rule.over and model_type in rule.model_types for rule in NAMES.rule)
    swapped = next(each for each in verdict.injected if each.fault == "two experts swapped")
    assert swapped.result is (Caught.CAUGHT if stacked or model_type == "gpt_oss" else Caught.NOT_APPLICABLE)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe"])
def test_what_the_pack_declares_kept_is_what_the_models_declare(model_type: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(model_type, **TINY | OF_TYPE[model_type])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    declared = {
        name
        for name in model.state_dict()
        for pattern in model._keep_in_fp32_modules_strict
        if re.search(rf"(^|\.){re.escape(pattern)}($|\.)", name)
    }
    kept = [entry for entry in NAMES.kept if model_type in entry.model_types]
    patterns = [pattern for entry in kept for pattern in entry.parameters]
    assert {n for n in model.state_dict() if any(compiled(p).fullmatch(n) for p in patterns)} == declared


def test_a_kept_tensor_that_lost_bits_is_found(tmp_path: Path) -> None:
    release = release_of("deepseek_v3", tmp_path / "plain", torch.float32)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    model = loaded(release, "bfloat16")
    assert model.get_buffer(bias).dtype is torch.float32
    assert load_check(recorded(tmp_path / "right", model, dtype="bfloat16"), release).outcome is Outcome.PASS
    model.model.layers[1].mlp.gate.e_score_correction_bias = model.get_buffer(bias).bfloat16()
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert codes(verdict) == {("dtypes", "dtype-differs")}
    assert problem(verdict, "dtype-differs").place.tensor == bias


@pytest.mark.parametrize("intermediate", [HIDDEN, 48])
def test_mixtral_experts_square_and_not(intermediate: int, tmp_path: Path) -> None:
    release = release_of("mixtral", tmp_path / "release", intermediate_size=intermediate)
    model = loaded(release, "bfloat16")
    down = model.model.layers[0].mlp.experts.down_proj
    with torch.no_grad():
        down[[1, 3]] = down[[3, 1]]
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert "2 of 4 experts moved: 1 holds 3, 3 holds 1" in problem(verdict, "permuted").message
    digests = load_check(recorded(tmp_path / "digests", model, whole=False, dtype="bfloat16"), release)
    assert "1 holds 3, 3 holds 1 (from its digest)" in problem(digests, "permuted").message


def test_gate_and_up_the_other_way_round(tmp_path: Path) -> None:
    release = release_of("qwen3_moe", tmp_path / "release")
    model = loaded(release, "float32")
    fused = model.model.layers[1].mlp.experts.gate_up_proj
    with torch.no_grad():
        fused.copy_(fused.roll(fused.shape[1] // 2, 1))
    found = problem(load_check(recorded(tmp_path / "run", model, dtype="float32"), release), "permuted")
    assert "axis 1" in found.message
    assert "halves swapped" in found.message


def module_of(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A tree of modules whose parameters have these names."""
    model = torch.nn.Module()
    for name, value in tensors.items():
        *path, last = name.split(".")
        inner = model
        for step in path:
            if not hasattr(inner, step):
                inner.add_module(step, torch.nn.Module())
            inner = getattr(inner, step)
        inner.register_parameter(last, torch.nn.Parameter(value))
    return model


OWN_PACK = """
format = 1
name = "own"
title = "Own"
[framework]
distributions = ["own"]
module = "own"
"""
OWN_NAMES = """
format = 1
covers = ["llama"]

[[rule]]
from = [
    "model.layers.{layer}.self_attn.q_proj.weight",
    "model.layers.{layer}.self_attn.k_proj.weight",
    "model.layers.{layer}.self_attn.v_proj.weight",
]
to = ["decoder.{layer}.qkv"]
operations = [{ op = "concat", axis = 0 }, { op = "transpose" }]

[[rule]]
from = ["model.layers.{layer}.mlp.gate_proj.weight", "model.layers.{layer}.mlp.up_proj.weight"]
to = ["decoder.{layer}.gate", "decoder.{layer}.up"]
operations = [{ op = "interleave", axis = 0 }, { op = "split", axis = 0, sizes = [["hidden_size", 2], [32]] }]

[[rule]]
from = ["model.layers.{layer}.{rest*}"]
to = ["decoder.{layer}.{rest*}"]
"""


def test_another_frameworks_arrangement(tmp_path: Path) -> None:
    """Joined, transposed, interleaved and split by configuration values, against torch's own operations."""
    release = release_of("llama", tmp_path / "release")
    tensors = load_file(release / "model.safetensors")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pack.toml").write_text(OWN_PACK)
    (tmp_path / "pack" / "names.toml").write_text(OWN_NAMES)
    found = {name: value for name, value in tensors.items() if "layers." not in name}
    for layer in range(2):
        stem = f"model.layers.{layer}"
        own = {n.removeprefix(f"{stem}."): v for n, v in tensors.items() if n.startswith(f"{stem}.")}
        joined = [own.pop(f"self_attn.{kind}_proj.weight") for kind in "qkv"]
        found[f"decoder.{layer}.qkv"] = torch.cat(joined).T.contiguous()
        gate_up = torch.stack([own.pop(f"mlp.{kind}_proj.weight") for kind in ("gate", "up")], 1).flatten(
            0, 1
        )
        gate, up = gate_up.split([2 * HIDDEN, 32])
        found |= {f"decoder.{layer}.gate": gate.clone(), f"decoder.{layer}.up": up.clone()}
        found |= {f"decoder.{layer}.{name}": value for name, value in own.items()}
    pack = str(tmp_path / "pack")
    run = recorded(tmp_path / "run", module_of(found), dtype="bfloat16")
    assert load_check(run, release, framework=pack).outcome is Outcome.PASS
    found["decoder.1.up"] = found["decoder.1.up"].flip(0)
    wrong = recorded(tmp_path / "wrong", module_of(found), dtype="bfloat16")
    assert problem(load_check(wrong, release, framework=pack), "permuted").place.tensor == "decoder.1.up"


def test_an_older_version_keeps_experts_apart(tmp_path: Path) -> None:
    """Before 5.0 the parameters have the release's own names: the map follows the recorded version."""
    release = release_of("qwen3_moe", tmp_path / "release")
    tensors = load_file(release / "model.safetensors")
    model = module_of(tensors)
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    run.environment(0, "4.57.6")
    for when in ("loaded-1", "loaded-2"):
        run.model(model, when)
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.PASS
    assert str(part(verdict, "values").coverage) == f"{len(tensors)} of {len(tensors)} tensors"


def mxfp4_release(folder: Path, intermediate: int) -> Path:
    """A tiny gpt-oss whose experts are random MXFP4 codes and scales."""
    plain = release_of("gpt_oss", folder / "plain", hidden_size=64, intermediate_size=intermediate)
    generator = torch.Generator().manual_seed(5)

    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            sizes = (("gate_up_proj", 2 * intermediate, 64), ("down_proj", 64, intermediate))
            for name, rows, columns in sizes:
                stem = f"model.layers.{layer}.mlp.experts.{name}"
                tensors.pop(stem)
                grid = (4, rows, columns // 32)
                tensors[f"{stem}_blocks"] = torch.randint(
                    0, 256, (*grid, 16), dtype=torch.uint8, generator=generator
                )
                tensors[f"{stem}_scales"] = torch.randint(
                    110, 130, grid, dtype=torch.uint8, generator=generator
                )

    release = edited(plain, folder / "release", quantize)
    config = json.loads((release / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (release / "config.json").write_text(json.dumps(config))
    return release


@pytest.mark.parametrize("intermediate", [64, 96])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mxfp4_experts_square_and_not(intermediate: int, dtype: str, tmp_path: Path) -> None:
    release = mxfp4_release(tmp_path, intermediate)
    how = {"quantization_config": Mxfp4Config(dequantize=True)}
    model = loaded(release, dtype, **how)
    verdict = load_check(recorded(tmp_path / "run", model, dtype=dtype), release)
    assert verdict.outcome is Outcome.PASS
    assert {each.fault for each in verdict.injected if each.result is Caught.CAUGHT} >= {
        "two experts swapped",
        "a wrong scale of a block",
    }
    experts = model.model.layers[1].mlp.experts
    with torch.no_grad():
        if intermediate == 64:
            experts.down_proj.copy_(experts.down_proj.transpose(1, 2).clone())
        experts.gate_up_proj.copy_(experts.gate_up_proj.roll(1, 2))
    wrong = load_check(recorded(tmp_path / "wrong", model, dtype=dtype), release)
    assert "shifted back by one" in problem(wrong, "permuted").message
    assert (("values", "transposed") in codes(wrong)) == (intermediate == 64)


def test_one_scale_of_a_block_is_named(tmp_path: Path) -> None:
    release = mxfp4_release(tmp_path, 96)
    model = loaded(release, "bfloat16", quantization_config=Mxfp4Config(dequantize=True))
    with torch.no_grad():
        model.model.layers[0].mlp.experts.down_proj[2, 32:64, 7].mul_(4)
    found = problem(load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release), "wrong-scale")
    assert "columns 7 to 7) are 4 times the release's" in found.message
    assert found.place.tensor == "model.layers.0.mlp.experts.down_proj"


def test_experts_that_stay_in_mxfp4(tmp_path: Path) -> None:
    """Codes and scales under the release's names are integers that are compared as they are."""
    release = mxfp4_release(tmp_path, 96)
    model = loaded(release, "bfloat16", quantization_config=Mxfp4Config(dequantize=True))
    tensors = load_file(release / "model.safetensors")
    for layer, block in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            delattr(block.mlp.experts, name)
            for kind in ("blocks", "scales"):
                value = tensors[f"model.layers.{layer}.mlp.experts.{name}_{kind}"]
                block.mlp.experts.register_buffer(f"{name}_{kind}", value)
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert verdict.outcome is Outcome.PASS
    model.model.layers[1].mlp.experts.down_proj_blocks[0, 0, 0, 0] ^= 1
    wrong = load_check(recorded(tmp_path / "wrong", model, dtype="bfloat16"), release)
    assert problem(wrong, "values-differ").place.tensor == "model.layers.1.mlp.experts.down_proj_blocks"


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fp8")
    script = Path(__file__).with_name("deepseek_release.py")
    command = [sys.executable, str(script), "v3", str(folder / "release"), str(folder / "export")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "release"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("whole", [True, False])
def test_block_fp8(fp8: Path, dtype: str, whole: bool, tmp_path: Path) -> None:
    model = dequantized(fp8, dtype)
    verdict = load_check(recorded(tmp_path / "run", model, whole=whole, dtype=dtype), fp8)
    assert verdict.outcome is Outcome.PASS
    caught = {each.fault: each.result for each in verdict.injected}
    assert caught["a wrong scale of a block"] is Caught.CAUGHT
    noted = any("kept wider, as documented in" in note for note in part(verdict, "dtypes").notes)
    assert noted == (dtype == "bfloat16")


def dequantized(release: Path, dtype: str) -> Any:
    how = FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32))
    return loaded(release, dtype, quantization_config=how)


def test_a_scale_block_of_fp8_that_was_applied_next_door(fp8: Path, tmp_path: Path) -> None:
    model = dequantized(fp8, "float32")
    weight = model.model.layers[0].mlp.gate_proj.weight
    with torch.no_grad():
        weight[32:64, 0:32].mul_(1.75)
    found = problem(load_check(recorded(tmp_path / "run", model, dtype="float32"), fp8), "wrong-scale")
    assert "(rows 32 to 63, columns 0 to 31) are 1.75 times" in found.message


def test_multi_token_prediction_is_not_missed(tmp_path: Path) -> None:
    """The release's own configuration says that layers lie past the last one."""
    plain = release_of("deepseek_v3", tmp_path / "plain", num_nextn_predict_layers=1)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors |= {
            name.replace("layers.1.", "layers.2."): value.clone()
            for name, value in tensors.items()
            if "layers.1." in name
        }

    release = edited(plain, tmp_path / "release", add)
    model = loaded(plain, "bfloat16")
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert verdict.outcome is Outcome.PASS
    assert any("num_nextn_predict_layers 1 past" in note for note in part(verdict, "names").notes)
    config = json.loads((release / "config.json").read_text())
    (release / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    assert ("names", "tensor-missing") in codes(load_check(tmp_path / "run", release))


def test_frequencies_that_an_old_release_stores_are_computed(tmp_path: Path) -> None:
    plain = release_of("llama", tmp_path / "plain")
    stored = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    release = edited(plain, tmp_path / "release", lambda tensors: tensors.update(stored))
    verdict = load_check(recorded(tmp_path / "run", loaded(plain, "bfloat16"), dtype="bfloat16"), release)
    assert verdict.outcome is Outcome.PASS


def test_a_release_with_a_hole_is_inconclusive(tmp_path: Path) -> None:
    plain = release_of("qwen3_moe", tmp_path / "plain")
    run = recorded(tmp_path / "run", loaded(plain, "bfloat16"), dtype="bfloat16")
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    release = edited(plain, tmp_path / "release", lambda tensors: tensors.pop(name))
    verdict = load_check(run, release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "expert 1" in verdict.reason


def test_a_float16_recipe(tmp_path: Path) -> None:
    release = release_of("llama", tmp_path / "release", torch.float32)
    run = recorded(tmp_path / "run", loaded(release, "float16"), dtype="float16")
    assert load_check(run, release).outcome is Outcome.PASS


def test_the_tests_know_the_version_that_the_map_is_of() -> None:
    assert NAMES.distribution == "transformers"
    assert {rule.citation.version for rule in NAMES.rule if rule.citation} == {transformers.__version__}
