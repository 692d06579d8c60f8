"""Tiny releases of the newest model types, with every layer type, as their own files name the tensors."""

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4Config, Glm5NextConfig, Qwen4ExpConfig, Qwen4ExpTextConfig

DEEPSEEK_V4: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "head_dim": 32, "q_lora_rank": 32, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "sliding_window": 8, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2,
    "index_head_dim": 32, "index_topk": 4, "partial_rotary_factor": 0.25, "max_position_embeddings": 512,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "mlp_layer_types": ["hash_moe", "moe", "moe"], "pad_token_id": 0,
}  # fmt: skip
QWEN4_EXP: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 32, "hc_count": 4, "hc_lowrank": 8,
    "ple_layer_ids": [2, 3], "ple_embed_dim": 64, "ngram_size": 3, "heads_per_ngram": 2,
    "ngram_vocab_size_base": 101, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
    "indexer_compress_ratio": 4, "eos_token_id": 1,
}  # fmt: skip
GLM5_NEXT: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 16,
    "qk_nope_head_dim": 16, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 2, "index_kpool": 4,
    "linear_head_dim": 16, "linear_num_heads": 4, "pad_token_id": 0,
    "layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "indexer_types": ["full", "full", "shared", "full"],
}  # fmt: skip
VISION: dict[str, Any] = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32}
CONFIGS: dict[str, Any] = {
    "deepseek_v4": lambda: DeepseekV4Config(**DEEPSEEK_V4),
    "qwen4_exp_text": lambda: Qwen4ExpTextConfig(**QWEN4_EXP),
    "qwen4_exp": lambda: Qwen4ExpConfig(
        text_config=QWEN4_EXP, vision_config=VISION | {"out_hidden_size": 64, "patch_size": 4}
    ),
    "glm5_next": lambda: Glm5NextConfig(
        text_config=GLM5_NEXT,
        vision_config=VISION | {"out_hidden_size": 64, "patch_size": 4, "projection_intermediate_size": 48},
    ),
}
CLASSES = {
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "qwen4_exp_text": "Qwen4ExpForCausalLM",
    "qwen4_exp": "Qwen4ExpForConditionalGeneration",
    "glm5_next": "Glm5NextForConditionalGeneration",
}


def next_release(model_type: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A release with random values in every floating-point parameter and buffer."""
    model = getattr(transformers, CLASSES[model_type])(CONFIGS[model_type]()).to(dtype)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_((torch.randn(value.shape, generator=generator) * 0.1).to(value.dtype))
            elif value.ndim == 2:  # the table of hash routing: two experts of each token
                value.copy_(torch.stack([torch.randperm(4, generator=generator)[:2] for _ in value]))
    model.save_pretrained(folder)
    return folder


def in_released_names(folder: Path) -> Path:
    """A DeepSeek-V4 folder as the release spells it: no prefix, the head's mixing in one piece of name."""
    path = folder / "model.safetensors"
    tensors = {released_name(name): value for name, value in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def released_name(name: str) -> str:
    """What DeepSeek calls a tensor that transformers saved."""
    name = re.sub(r"^model\.hc_head\.hc_", "hc_head_", name)
    name = re.sub(r"^model\.embed_tokens\.", "embed.", name)
    name = re.sub(r"\.attn\.norm\.", ".attn.kv_norm.", name)
    return name.removeprefix("model.")


def load_next(model_type: str, folder: Path, dtype: str, **how: Any) -> Any:
    """The model as its own class loads it."""
    return getattr(transformers, CLASSES[model_type]).from_pretrained(folder, dtype=dtype, **how)
