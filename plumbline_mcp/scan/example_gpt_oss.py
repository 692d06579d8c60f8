"""The embedded gpt-oss: configuration and weights in the released on-disk format, random in every tensor.

Layout of the quantized experts (OCP Microscaling, MXFP4): blocks of 32 codes of 4 bits along the input
dimension, two codes a byte (low first), one power-of-two scale a block, biased by 127. ``gate_up_proj`` has
its gate and up rows interleaved.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline_mcp.scan.example_decoder import decoder_config, decoder_tensors
from plumbline_mcp.scan.example_spec import ReleaseSpec, Shape
from plumbline_mcp.scan.example_storage import StoredTensor, normal

_BLOCK = 32
_MXFP4_CONFIG: dict[str, Any] = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def _layer_types(layers: int) -> list[str]:
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]


def config(spec: ReleaseSpec) -> dict[str, Any]:
    """``config.json`` with the fields that the released models have; sizes are the tiny ones."""
    shape = spec.shape
    own: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "experts_per_token": 2,
        "head_dim": shape.head_dim,
        "initial_context_length": 4096,
        "layer_types": _layer_types(shape.layers),
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_experts_per_tok": 2,
        "num_key_value_heads": shape.key_value_heads,
        "num_local_experts": shape.experts,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 16,
        "swiglu_limit": 7.0,
    }
    return decoder_config(spec, own, _MXFP4_CONFIG)


def _mxfp4(
    random: np.random.Generator, name: str, shape: tuple[int, int, int]
) -> Iterator[tuple[str, StoredTensor]]:
    """``shape`` is [experts, rows, columns]; every code occurs, so all of a decoder's table is used."""
    experts, rows, columns = shape
    grid = (experts, rows, columns // _BLOCK)
    blocks = random.integers(0, 256, (*grid, _BLOCK // 2), dtype=np.uint8)
    scales = random.integers(119, 123, grid, dtype=np.uint8)
    yield f"{name}_blocks", StoredTensor("U8", blocks.shape, blocks.tobytes())
    yield f"{name}_scales", StoredTensor("U8", scales.shape, scales.tobytes())


def _experts(
    random: np.random.Generator, prefix: str, shape: Shape, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    count, hidden, inner = shape.experts, shape.hidden, shape.intermediate
    if quantized:
        yield from _mxfp4(random, f"{prefix}.gate_up_proj", (count, 2 * inner, hidden))
        yield from _mxfp4(random, f"{prefix}.down_proj", (count, hidden, inner))
    else:
        yield f"{prefix}.gate_up_proj", normal(random, count, hidden, 2 * inner, scale=0.05)
        yield f"{prefix}.down_proj", normal(random, count, inner, hidden, scale=0.05)
    yield f"{prefix}.gate_up_proj_bias", normal(random, count, 2 * inner, scale=0.1)
    yield f"{prefix}.down_proj_bias", normal(random, count, hidden, scale=0.1)


def _layer(
    random: np.random.Generator, prefix: str, shape: Shape, quantized: bool
) -> Iterator[tuple[str, StoredTensor]]:
    queries, keys = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    attention = f"{prefix}.self_attn"
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"{attention}.{name}.weight", normal(random, rows, shape.hidden, scale=0.1)
        yield f"{attention}.{name}.bias", normal(random, rows, scale=0.2)
    yield f"{attention}.o_proj.weight", normal(random, shape.hidden, queries, scale=0.1)
    yield f"{attention}.o_proj.bias", normal(random, shape.hidden, scale=0.2)
    yield f"{attention}.sinks", normal(random, shape.heads, scale=1.0)
    yield f"{prefix}.input_layernorm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)
    yield f"{prefix}.post_attention_layernorm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)
    yield f"{prefix}.mlp.router.weight", normal(random, shape.experts, shape.hidden, scale=0.3)
    yield f"{prefix}.mlp.router.bias", normal(random, shape.experts, scale=0.3)
    yield from _experts(random, f"{prefix}.mlp.experts", shape, quantized)


def tensors(spec: ReleaseSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor by its on-disk name. ``multi_token`` adds a head that the config does not name."""
    shape, random = spec.shape, np.random.Generator(np.random.PCG64(spec.seed))
    yield from decoder_tensors(spec, random, lambda prefix, _: _layer(random, prefix, shape, spec.quantized))
    if spec.multi_token:
        yield "mtp.0.eh_proj.weight", normal(random, shape.hidden, 2 * shape.hidden, scale=0.1)
        yield "mtp.0.norm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)
