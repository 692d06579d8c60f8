"""The embedded llama: a dense model, for what gpt-oss cannot show (tied embeddings, adapters, block FP8)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline_mcp.scan.example_spec import ReleaseSpec, Shape
from plumbline_mcp.scan.example_storage import FP8_BLOCK, StoredTensor, matrix, normal
from plumbline_mcp.scan.example_tokenizer import PAD, RETURN, token_ids


def config(spec: ReleaseSpec) -> dict[str, Any]:
    """``config.json`` with the fields that the released models have; sizes are the tiny ones."""
    shape, ids = spec.shape, token_ids()
    content: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|startoftext|>"],
        "eos_token_id": ids[RETURN],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "pad_token_id": ids[RETURN if spec.pad_is_stop else PAD],
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }
    if spec.quantized:
        content["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        }
    return content


def _layer(
    random: np.random.Generator, prefix: str, shape: Shape, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    queries, keys = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    matrices = (
        ("self_attn.q_proj", queries, shape.hidden),
        ("self_attn.k_proj", keys, shape.hidden),
        ("self_attn.v_proj", keys, shape.hidden),
        ("self_attn.o_proj", shape.hidden, queries),
        ("mlp.gate_proj", shape.intermediate, shape.hidden),
        ("mlp.up_proj", shape.intermediate, shape.hidden),
        ("mlp.down_proj", shape.hidden, shape.intermediate),
    )
    for name, rows, columns in matrices:
        yield from matrix(random, f"{prefix}.{name}", rows, columns, quantized)
    yield f"{prefix}.input_layernorm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)
    yield f"{prefix}.post_attention_layernorm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)


def tensors(spec: ReleaseSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor by its on-disk name."""
    shape, random = spec.shape, np.random.Generator(np.random.PCG64(spec.seed))
    yield "model.embed_tokens.weight", normal(random, shape.vocabulary, shape.hidden, scale=0.5)
    for layer in range(shape.layers):
        yield from _layer(random, f"model.layers.{layer}", shape, spec.quantized)
    yield "model.norm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)
    if not spec.tied:
        yield "lm_head.weight", normal(random, shape.vocabulary, shape.hidden, scale=0.1)
