"""The embedded llama: a dense model, for what gpt-oss cannot show (tied embeddings, adapters, block FP8)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline_mcp.scan.example_decoder import decoder_config, decoder_tensors
from plumbline_mcp.scan.example_spec import ReleaseSpec, Shape
from plumbline_mcp.scan.example_storage import StoredTensor, matrix, normal


def config(spec: ReleaseSpec) -> dict[str, Any]:
    """``config.json`` with the fields that the released models have; sizes are the tiny ones."""
    shape = spec.shape
    own: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
    }
    return decoder_config(spec, own)


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
    yield from decoder_tensors(spec, random, lambda prefix, _: _layer(random, prefix, shape, spec.quantized))
