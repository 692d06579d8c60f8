"""The table of configuration values that shape computation, and where a model in memory holds each of them.

``keys`` are names in a configuration, ``attributes`` names under which modules of transformers hold the value
themselves (``children``: parts whose class says it). A module's own value decides what is computed, whatever
the configuration says; where modules hold none, the live configuration is what the forward pass reads.
Modules that a configuration adds or leaves out (multi-token prediction) are judged by their parameters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Quantity:
    """One value that shapes computation; ``citation``: what documents it.

    ``by_shape``: the shapes of parameters show it too, so no module need hold it.
    """

    name: str
    keys: tuple[str, ...]
    attributes: tuple[str, ...]
    citation: str
    children: tuple[str, ...] = ()
    by_shape: bool = False


_CONFIG = "docs/source/en/main_classes/configuration.md; the model's configuration class, transformers 5.24.0"
_MODELS = "src/transformers/models, modeling files, transformers 5.24.0"

QUANTITIES = (
    Quantity("layers", ("num_hidden_layers", "first_k_dense_replace", "mlp_layer_types"), (), _CONFIG),
    Quantity(
        "attention heads",
        (
            "num_attention_heads", "num_key_value_heads", "head_dim", "kv_lora_rank", "q_lora_rank",
            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        ),
        (
            "num_heads", "num_key_value_heads", "num_key_value_groups", "head_dim", "kv_lora_rank",
            "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "n_groups",
        ),
        _MODELS,
    ),
    Quantity(
        "widths",
        ("hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
         "vocab_size"),
        ("hidden_size", "intermediate_size", "hidden_dim", "intermediate_dim", "in_features", "out_features",
         "num_embeddings", "embedding_dim", "vocab_size"),
        _MODELS,
        by_shape=True,
    ),
    Quantity(
        "norm epsilon",
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
        ("variance_epsilon", "eps", "epsilon"),
        "Zhang and Sennrich 2019, RMSNorm; " + _MODELS,
    ),
    Quantity(
        "activation",
        ("hidden_act", "hidden_activation", "activation_function", "swiglu_limit", "swiglu_alpha"),
        ("alpha", "limit"),
        _MODELS,
        ("act_fn", "activation_fn", "act"),
    ),
    Quantity(
        "rotary embedding",
        (
            "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_local_base_freq",
            "compress_rope_theta", "rope_interleave", "no_rope_layers",
        ),
        (
            "rope_type", "attention_scaling", "sliding_attention_attention_scaling",
            "full_attention_attention_scaling", "main_attention_scaling", "compress_attention_scaling",
            "rope_layer_type", "original_max_seq_len",
        ),
        "src/transformers/modeling_rope_utils.py, 5.24.0; Su et al. 2021; Peng et al. 2023 (YaRN)",
    ),
    Quantity(
        "attention scaling",
        ("query_pre_attn_scalar", "attention_multiplier"),
        ("scaling", "softmax_scale", "weights_scaling", "is_causal"),
        _MODELS,
    ),
    Quantity(
        "soft cap",
        ("attn_logit_softcapping", "final_logit_softcapping"),
        ("attn_logit_softcapping",),
        "Gemma 2 report 2024, logit soft-capping; " + _MODELS,
    ),
    Quantity(
        "attention window",
        (
            "sliding_window", "layer_types", "use_sliding_window", "max_window_layers",
            "attention_chunk_size", "compress_rates", "index_topk", "index_n_heads", "index_head_dim",
        ),
        ("sliding_window", "layer_type", "attention_type", "is_sliding", "compress_rate", "index_topk"),
        _MODELS,
    ),
    Quantity(
        "router",
        (
            "num_experts_per_tok", "num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts",
            "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "scoring_func", "topk_method",
            "decoder_sparse_step", "mlp_only_layers",
        ),
        (
            "top_k", "num_experts_per_tok", "num_experts", "norm_topk_prob", "routed_scaling_factor",
            "num_group", "topk_group", "jitter_noise", "is_hash",
        ),
        "Fedus et al. 2021; DeepSeek-V3 report 2024, section 2.1.2; " + _MODELS,
    ),
    Quantity(
        "multipliers",
        ("embedding_multiplier", "residual_multiplier", "logits_scaling"),
        ("embedding_multiplier", "residual_multiplier", "logits_scaling", "scalar_embed_scale"),
        _MODELS,
    ),
    Quantity("biases and norms of attention", ("attention_bias", "mlp_bias", "use_qk_norm", "qk_norm"),
             ("use_qk_norm",), _MODELS),
    Quantity("tied embeddings", ("tie_word_embeddings",), (), _CONFIG),
    Quantity("hyper-connections", ("hc_mult", "hc_eps", "hc_sinkhorn_iters"),
             ("hc_mult", "hc_eps", "hc_sinkhorn_iters"), _MODELS),
    Quantity(
        "padding row of the embedding",
        (),
        ("padding_idx",),
        "torch.nn.Embedding, padding_idx: its row receives no gradient",
    ),
    Quantity(
        "dropout",
        ("attention_dropout", "hidden_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "dropout"),
        ("attention_dropout", "hidden_dropout"),
        _CONFIG,
    ),
)  # fmt: skip

OTHER_NAMES = {"num_group": ("n_group",), "num_experts": ("n_routed_experts",), "eps": ("variance_epsilon",)}
"""Names that other versions of transformers have for an attribute (4.57.6: the router of DeepSeek-V3)."""

DROPOUTS = next(entry for entry in QUANTITIES if entry.name == "dropout")
ROPE = "rotary embedding"
ATTRIBUTES = {name: entry for entry in QUANTITIES for name in entry.attributes}
CHILDREN = {name: entry for entry in QUANTITIES for name in entry.children}


def decoder_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a configuration describes the decoder: ``text_config`` of a model with several parts."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) and "num_hidden_layers" in text else config


def stated(config: Mapping[str, Any]) -> Iterator[tuple[Quantity, str, Any]]:
    """(quantity, key, value) of what a configuration states; the rotary embedding's in one form.

    Versions write the rotary embedding as ``rope_theta`` with ``rope_scaling``, or as ``rope_parameters``.
    """
    place = decoder_config(config)
    for quantity in QUANTITIES:
        if quantity.name == ROPE:
            yield from ((quantity, f"rope.{key}", value) for key, value in rope_of(place).items())
        for key in quantity.keys:
            if key in place and key not in _ROPE_FORMS:
                yield quantity, key, place[key]


_ROPE_FORMS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Type, base and scaling of the rotary embedding, flat; of layer types apart as ``type.key``."""
    found: dict[str, Any] = {}
    for form in ("rope_scaling", "rope_parameters"):
        part = config.get(form)
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if isinstance(value, Mapping):
                found |= {f"{key}.{inner}": each for inner, each in value.items()}
            else:
                found["rope_type" if key == "type" else key] = value
    for key in ("rope_theta", "partial_rotary_factor"):
        if config.get(key) is not None:
            found.setdefault(key, config[key])
    if "rope_theta" in found:
        found.setdefault("rope_type", "default")
    return {key: value for key, value in found.items() if value is not None}


def same(one: Any, other: Any) -> bool:
    """Equal as numbers, texts or lists of them; a switch is no number."""
    if isinstance(one, bool) != isinstance(other, bool) and None not in (one, other):
        return False
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
