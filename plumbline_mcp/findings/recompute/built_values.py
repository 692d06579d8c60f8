"""Values that shape what a model computes, worked out from its official configuration in closed form.

Sources: the papers of the models (Touvron et al. 2023; OpenAI 2025, gpt-oss model card; Peng et al. 2023,
YaRN) and the meaning of the fields of ``config.json``. What has no closed form here is `UNKNOWN`.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plumbline_mcp.findings.recompute.reading import number

UNKNOWN = object()
"""Stands for a value that nothing here gives."""

Config = dict[str, Any]
STATED = (
    "num_hidden_layers", "first_k_dense_replace", "mlp_layer_types", "num_attention_heads",
    "num_key_value_heads", "head_dim", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "hidden_size", "intermediate_size", "moe_intermediate_size",
    "shared_expert_intermediate_size", "vocab_size", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
    "norm_epsilon", "norm_eps", "hidden_act", "hidden_activation", "activation_function", "swiglu_limit",
    "swiglu_alpha", "rope_local_base_freq", "compress_rope_theta", "rope_interleave", "no_rope_layers",
    "query_pre_attn_scalar", "attention_multiplier", "attn_logit_softcapping", "final_logit_softcapping",
    "sliding_window", "layer_types", "use_sliding_window", "max_window_layers", "attention_chunk_size",
    "compress_rates", "index_topk", "index_n_heads", "index_head_dim", "num_experts_per_tok",
    "num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts", "norm_topk_prob",
    "routed_scaling_factor", "n_group", "topk_group", "scoring_func", "topk_method", "decoder_sparse_step",
    "mlp_only_layers", "embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_bias",
    "mlp_bias", "use_qk_norm", "qk_norm", "tie_word_embeddings", "hc_mult", "hc_eps", "hc_sinkhorn_iters",
)  # fmt: skip
"""Fields of a configuration whose meaning decides what is computed; those of rotary embeddings aside."""
DROPOUTS = (
    "attention_dropout", "hidden_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "dropout",
)  # fmt: skip
_SIMPLE = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gpt_oss")
"""Model types whose attention scales by the head's width alone, and whose norms all take one epsilon."""
_CLASSES = {
    "silu": ("SiLU", "SiLUActivation"),
    "swish": ("SiLU", "SiLUActivation"),
    "gelu": ("GELU", "GELUActivation"),
    "gelu_pytorch_tanh": ("GELUTanh", "PytorchGELUTanh"),
    "relu": ("ReLU",),
}


def decoder(config: Config) -> Config:
    """The part of a configuration that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and "num_hidden_layers" in inner else config


def told(config: Config) -> Config:
    """Every field of the table that a configuration states, and its rotary embedding as ``rope.<field>``."""
    place = decoder(config)
    found = {key: place[key] for key in (*STATED, *DROPOUTS) if key in place}
    return found | {f"rope.{key}": value for key, value in rotary(place).items()}


def rotary(config: Config) -> Config:
    """The rotary embedding: ``rope_theta`` with ``rope_scaling`` is what ``rope_parameters`` says in one."""
    flat: Config = {}
    for form in (config.get("rope_scaling") or {}, config.get("rope_parameters") or {}):
        for key, value in form.items() if isinstance(form, dict) else ():
            inner = value if isinstance(value, dict) else {"": value}
            for name, one in inner.items():
                flat[f"{key}.{name}" if name else "rope_type" if key == "type" else str(key)] = one
    for key in ("rope_theta", "partial_rotary_factor"):
        flat[key] = flat.get(key, config.get(key))
    if flat["rope_theta"] is not None and "rope_type" not in flat:
        flat["rope_type"] = "default"
    return {key: value for key, value in flat.items() if value is not None}


def alike(one: Any, other: Any) -> bool:
    """Equal, where true is not 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and not any(not alike(*both) for both in zip(one, other, strict=True))
    return isinstance(one, bool) is isinstance(other, bool) and one == other


@dataclass(frozen=True)
class Module:
    """One module. ``config``: of the decoder; ``shapes``: of tensors under the model's names."""

    name: str
    config: Config = field(repr=False)
    shapes: dict[str, tuple[int, ...]] = field(repr=False)
    dropout: float | None = None

    @property
    def last(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]

    @property
    def layer(self) -> int:
        """The number of the layer that it is in, -1 outside of layers."""
        match = re.search(r"(?:^|\.)layers\.(\d{1,6})(?:\.|$)", self.name)
        return int(match[1]) if match else -1

    @property
    def simple(self) -> bool:
        """Whether the model type is one whose attention and norms have a closed form here."""
        return self.config.get("model_type") in _SIMPLE

    def get(self, *keys: str) -> Any:
        """The first of these fields that the configuration states."""
        return next((self.config[key] for key in keys if self.config.get(key) is not None), UNKNOWN)

    def side(self, part: str, axis: int) -> Any:
        """A side of the weight of a part."""
        shape = self.shapes.get(f"{self.name}.{part}" if self.name else part, ())
        return shape[axis] if len(shape) == 2 else UNKNOWN

    def expected(self, attribute: str) -> Any:
        """The value that the configuration gives, or `UNKNOWN`."""
        return _FORMS[attribute](self) if attribute in _FORMS else UNKNOWN


def _of_attention(*keys: str) -> Callable[[Module], Any]:
    """A field that an attention module holds; what an indexer calls the same is its own."""
    return lambda module: module.get(*keys) if module.last == "self_attn" else UNKNOWN


def _head(module: Module) -> Any:
    width, heads = module.get("hidden_size"), module.get("num_attention_heads")
    stated = module.get("head_dim") if module.last == "self_attn" else UNKNOWN
    if stated is UNKNOWN and module.simple and type(width) is int and type(heads) is int and heads > 0:
        return width // heads
    return stated


def _groups(module: Module) -> Any:
    heads, shared = module.get("num_attention_heads"), module.get("num_key_value_heads")
    fits = module.last == "self_attn" and type(heads) is int and type(shared) is int and shared > 0
    return heads // shared if fits else UNKNOWN


def _width(module: Module) -> Any:
    whole = module.last.isdecimal() or module.last in ("", "model", "mlp", "router", "gate", "experts")
    return module.get("hidden_size") if whole or module.simple else UNKNOWN


def _scaling(module: Module) -> Any:
    head = _head(module)
    fits = module.simple and module.last == "self_attn" and type(head) is int and head > 0
    return head**-0.5 if fits else UNKNOWN


def _epsilon(module: Module) -> Any:
    return module.get("rms_norm_eps") if module.simple else UNKNOWN


def _causal(module: Module) -> Any:
    return True if module.simple and module.last == "self_attn" else UNKNOWN


def _kind(module: Module) -> Any:
    kinds = module.get("layer_types")
    return kinds[module.layer] if isinstance(kinds, list) and 0 <= module.layer < len(kinds) else UNKNOWN


def _window(module: Module) -> Any:
    kind = _kind(module)
    if kind is UNKNOWN or not module.simple:
        return None if module.config.get("use_sliding_window") is False else UNKNOWN
    return module.get("sliding_window") if kind == "sliding_attention" else None


def _rope_type(module: Module) -> Any:
    rope = rotary(module.config)
    return UNKNOWN if any("." in key for key in rope) else rope.get("rope_type", UNKNOWN)


def _attention_scaling(module: Module) -> Any:
    """The factor of cosine and sine: 1, and with YaRN 0.1 ln(factor) + 1 (equation 22)."""
    rope, kind = rotary(module.config), _rope_type(module)
    if kind in ("default", "linear", "llama3", "dynamic"):
        return 1.0
    factor, said = number(rope.get("factor")), rope.get("attention_factor")
    if kind != "yarn" or "mscale" in rope or "mscale_all_dim" in rope or not factor:
        return UNKNOWN
    return said if said is not None else 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def _activation(module: Module) -> Any:
    return _CLASSES.get(str(module.get("hidden_act", "hidden_activation", "activation_function")), UNKNOWN)


def _dropped(module: Module) -> Any:
    stated = module.get("attention_dropout")
    return module.dropout if module.dropout is not None else stated


def _padding(module: Module) -> Any:
    return module.config.get("pad_token_id") if module.simple else UNKNOWN


def _inner(module: Module) -> Any:
    found = module.side("gate_proj.weight", 0)
    if found is not UNKNOWN or module.last != "experts":
        return found
    return module.get("moe_intermediate_size", "intermediate_size")


def _gpt_oss(key: str, default: float) -> Callable[[Module], Any]:
    """A constant of the published gpt-oss code where the configuration does not state it."""

    def form(module: Module) -> Any:
        return module.config.get(key, default) if module.config.get("model_type") == "gpt_oss" else UNKNOWN

    return form


def _field(*keys: str) -> Callable[[Module], Any]:
    return lambda module: module.get(*keys)


def _weight(axis: int) -> Callable[[Module], Any]:
    return lambda module: module.side("weight", axis)


_TOP = _field("num_experts_per_tok")
_EXPERTS = _field("num_local_experts", "num_experts", "n_routed_experts")
_FORMS: dict[str, Callable[[Module], Any]] = {
    "num_heads": _of_attention("num_attention_heads"),
    "num_key_value_heads": _of_attention("num_key_value_heads"),
    "num_key_value_groups": _groups,
    "head_dim": _head,
    **{key: _field(key) for key in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")},
    **{key: _field(key) for key in ("v_head_dim", "norm_topk_prob", "routed_scaling_factor", "topk_group")},
    **{key: _field(key) for key in ("vocab_size", "index_topk", "attn_logit_softcapping", "logits_scaling")},
    **{key: _field(key) for key in ("residual_multiplier", "embedding_multiplier")},
    "hidden_size": _width,
    "hidden_dim": _width,
    "intermediate_size": _inner,
    "intermediate_dim": _inner,
    "in_features": _weight(1),
    "out_features": _weight(0),
    "num_embeddings": _weight(0),
    "embedding_dim": _weight(1),
    "variance_epsilon": _epsilon,
    "eps": _epsilon,
    "alpha": _gpt_oss("swiglu_alpha", 1.702),
    "limit": _gpt_oss("swiglu_limit", 7.0),
    "rope_type": _rope_type,
    "attention_scaling": _attention_scaling,
    "original_max_seq_len": _field("max_position_embeddings"),
    "scaling": _scaling,
    "is_causal": _causal,
    "layer_type": _kind,
    "attention_type": _kind,
    "sliding_window": _window,
    "top_k": _TOP,
    "num_experts_per_tok": _TOP,
    "num_experts": _EXPERTS,
    "n_routed_experts": _EXPERTS,
    "num_group": _field("n_group"),
    "n_group": _field("n_group"),
    "padding_idx": _padding,
    "attention_dropout": _dropped,
    "act_fn": _activation,
    "activation_fn": _activation,
    "act": _activation,
}
WITHOUT_FORM = (
    "qk_head_dim", "n_groups", "epsilon", "sliding_attention_attention_scaling",
    "full_attention_attention_scaling", "main_attention_scaling", "compress_attention_scaling",
    "rope_layer_type", "softmax_scale", "weights_scaling", "is_sliding", "compress_rate", "jitter_noise",
    "is_hash", "scalar_embed_scale", "use_qk_norm", "hc_mult", "hc_eps", "hc_sinkhorn_iters",
    "hidden_dropout",
)  # fmt: skip
"""Attributes that shape computation as well, and that are not worked out here."""
SHAPING = frozenset((*_FORMS, *WITHOUT_FORM))
