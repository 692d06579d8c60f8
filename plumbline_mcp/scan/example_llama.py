"""The embedded llama: a dense model, for what gpt-oss cannot show (tied embeddings, adapters, block FP8).

Block FP8: each matrix is float8_e4m3fn with one fp32 ``weight_scale_inv`` for a block of 32 x 32; a value is
the code times its block's scale.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline_mcp.scan.example_spec import ReleaseSpec, Shape
from plumbline_mcp.scan.example_storage import StoredTensor, normal
from plumbline_mcp.scan.example_tokenizer import PAD, RETURN, token_ids

_BLOCK = 32


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
            "weight_block_size": [_BLOCK, _BLOCK],
        }
    return content


def _matrix(
    random: np.random.Generator, name: str, rows: int, columns: int, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    if not quantized:
        yield f"{name}.weight", normal(random, rows, columns, scale=0.1)
        return
    codes = random.integers(0, 0x7F, (rows, columns), dtype=np.uint8)  # 0x7F is NaN
    codes |= random.integers(0, 2, (rows, columns), dtype=np.uint8) << np.uint8(7)
    scales = (0.5 + random.random((-(-rows // _BLOCK), -(-columns // _BLOCK)))).astype("<f4") / np.float32(
        1024
    )
    yield f"{name}.weight", StoredTensor("F8_E4M3", codes.shape, codes.tobytes())
    yield f"{name}.weight_scale_inv", StoredTensor("F32", scales.shape, scales.astype("<f4").tobytes())


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
        yield from _matrix(random, f"{prefix}.{name}", rows, columns, quantized)
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
