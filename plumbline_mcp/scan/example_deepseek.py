"""The embedded deepseek_v3: experts one by one in block FP8, low-rank attention, a router with a bias."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline_mcp.scan.example_decoder import decoder_config, decoder_tensors
from plumbline_mcp.scan.example_spec import ReleaseSpec, Shape
from plumbline_mcp.scan.example_storage import StoredTensor, matrix, normal

_RANK, _HEAD, _EXPERT = 32, 16, 32
_ROPE, _RAGGED_ROPE = 32, 16
"""The part of a head that carries positions: with the rank two blocks of 32 rows, or one and a half."""
_DENSE_LAYERS = 1


def config(spec: ReleaseSpec) -> dict[str, Any]:
    """``config.json`` with the fields that the released models have; sizes are the tiny ones."""
    shape = spec.shape
    own: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "first_k_dense_replace": _DENSE_LAYERS,
        "kv_lora_rank": _RANK,
        "max_position_embeddings": 4096,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": _EXPERT,
        "n_group": 2,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_key_value_heads": shape.heads,
        "q_lora_rank": _RANK,
        "qk_nope_head_dim": _HEAD,
        "qk_rope_head_dim": _rope(spec),
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": _HEAD,
    }
    return decoder_config(spec, own)


def _rope(spec: ReleaseSpec) -> int:
    return _RAGGED_ROPE if spec.ragged else _ROPE


def _gated(prefix: str, inner: int, hidden: int) -> list[tuple[str, int, int]]:
    return [
        (f"{prefix}.gate_proj", inner, hidden),
        (f"{prefix}.up_proj", inner, hidden),
        (f"{prefix}.down_proj", hidden, inner),
    ]


def _matrices(layer: int, shape: Shape, rope: int) -> list[tuple[str, int, int]]:
    attention = [
        ("self_attn.q_a_proj", _RANK, shape.hidden),
        ("self_attn.q_b_proj", shape.heads * (_HEAD + rope), _RANK),
        ("self_attn.kv_a_proj_with_mqa", _RANK + rope, shape.hidden),
        ("self_attn.kv_b_proj", shape.heads * 2 * _HEAD, _RANK),
        ("self_attn.o_proj", shape.hidden, shape.heads * _HEAD),
    ]
    if layer < _DENSE_LAYERS:
        return attention + _gated("mlp", shape.intermediate, shape.hidden)
    experts = [f"mlp.experts.{expert}" for expert in range(shape.experts)]
    parts = [_gated(prefix, _EXPERT, shape.hidden) for prefix in [*experts, "mlp.shared_experts"]]
    return attention + [each for part in parts for each in part]


def _layer(
    random: np.random.Generator, prefix: str, layer: int, spec: ReleaseSpec
) -> Iterator[tuple[str, StoredTensor]]:
    shape = spec.shape
    for name, rows, columns in _matrices(layer, shape, _rope(spec)):
        yield from matrix(random, f"{prefix}.{name}", rows, columns, spec.quantized)
    norms = (
        ("self_attn.q_a_layernorm", _RANK),
        ("self_attn.kv_a_layernorm", _RANK),
        ("input_layernorm", shape.hidden),
        ("post_attention_layernorm", shape.hidden),
    )
    for name, size in norms:
        yield f"{prefix}.{name}.weight", normal(random, size, scale=0.1, mean=1.0)
    if layer >= _DENSE_LAYERS:
        yield f"{prefix}.mlp.gate.weight", normal(random, shape.experts, shape.hidden, scale=0.3)
        bias = random.standard_normal(shape.experts).astype("<f4")
        yield f"{prefix}.mlp.gate.e_score_correction_bias", StoredTensor("F32", bias.shape, bias.tobytes())


def tensors(spec: ReleaseSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor by its on-disk name."""
    random = np.random.Generator(np.random.PCG64(spec.seed))
    yield from decoder_tensors(spec, random, lambda prefix, number: _layer(random, prefix, number, spec))
