"""Run in a framework's environment: a tiny DeepSeek release in low precision, and what transformers saves
of it.

Usage: deepseek_release.py v3|v4 RELEASE EXPORT. V3: block FP8 with float32 scales. V4: block FP8 with E8M0
scales, routed experts in packed FP4.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV4Config,
    DeepseekV4ForCausalLM,
)

BLOCK = 32
RANDOM = torch.Generator().manual_seed(0)


def v3() -> torch.nn.Module:
    sizes = {
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "v_head_dim": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
    }
    config = DeepseekV3Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        pad_token_id=0,
        **sizes,
    )
    return DeepseekV3ForCausalLM(config)


def v4() -> torch.nn.Module:
    compressed, heavily = "compressed_sparse_attention", "heavily_compressed_attention"
    config = DeepseekV4Config(
        vocab_size=512,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=2,
        index_head_dim=32,
        index_topk=4,
        partial_rotary_factor=0.25,
        max_position_embeddings=512,
        pad_token_id=0,
        layer_types=["sliding_attention", compressed, heavily],
        compress_rates={compressed: 4, heavily: 16},
        mlp_layer_types=["hash_moe", "moe", "moe"],
    )
    return DeepseekV4ForCausalLM(config)


def fp8(weight: torch.Tensor, power_of_two: bool) -> "tuple[torch.Tensor, torch.Tensor]":
    rows, columns = weight.shape
    scale = torch.rand(-(-rows // BLOCK), -(-columns // BLOCK), generator=RANDOM) * 0.01 + 0.001
    if power_of_two:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    whole = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return (weight.float() / whole).clamp(-440, 440).to(torch.float8_e4m3fn), scale


def quantized(name: str, weight: torch.Tensor, kind: str) -> "dict[str, torch.Tensor]":
    stem = name[: -len("weight")]
    if weight.ndim != 2 or any(length % BLOCK for length in weight.shape):
        return {name: weight}
    if kind == "v3" and "_proj" in name:
        codes, scale = fp8(weight, power_of_two=False)
        return {name: codes, f"{name}_scale_inv": scale}
    if kind == "v4" and ".experts." in name:
        rows, columns = weight.shape
        codes = torch.randint(-128, 128, (rows, columns // 2), dtype=torch.int8, generator=RANDOM)
        exponents = torch.randint(-8, -3, (rows, columns // 32), generator=RANDOM)
        return {name: codes, f"{stem}scale": torch.exp2(exponents.float()).to(torch.float8_e8m0fnu)}
    if kind == "v4" and any(
        part in name for part in (".wq_a.", ".wq_b.", ".wkv.", ".wo_b.", "shared_experts")
    ):
        codes, scale = fp8(weight, power_of_two=True)
        return {name: codes, f"{stem}scale": scale.to(torch.float8_e8m0fnu)}
    return {name: weight}


def main(kind: str, release: Path, export: Path) -> None:
    torch.set_num_threads(1)
    model = {"v3": v3, "v4": v4}[kind]().to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn(parameter.shape, generator=RANDOM) * 0.1).to(parameter.dtype))
    model.save_pretrained(release)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(release / "model.safetensors").items():
        tensors |= quantized(name, weight, kind)
    save_file(tensors, release / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((release / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [BLOCK, BLOCK],
    }
    if kind == "v4":
        config["quantization_config"]["scale_fmt"] = "ue8m0"
        config["expert_dtype"] = "fp4"
    (release / "config.json").write_text(json.dumps(config))
    AutoModelForCausalLM.from_pretrained(release, dtype="auto").save_pretrained(export)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
