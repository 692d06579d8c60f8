"""Frequencies of rotary embeddings in closed form, from a configuration alone.

Sources: Su et al. 2021 (inverse frequencies base^(-2i/d)); Chen et al. 2023 (linear interpolation); Peng et
al. 2023 (YaRN, equations 17 to 23); the published configuration of Llama 3.1 (``llama3``).
"""

import math
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import Floats
from plumbline_mcp.findings.recompute.reading import number

ULPS = 4.0
"""Units in the last place between two float32 computations: a power, a quotient, a product on each side."""


def inverse_frequencies(config: dict[str, Any]) -> Floats | None:
    """float64[d / 2]; None for a kind that is not written here."""
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) else config
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        return None
    base = number(scaling.get("rope_theta", config.get("rope_theta", 10000.0)))
    size = _dimension(config, scaling)
    if not base or base <= 1 or not size:
        return None
    plain = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = number(scaling.get("factor", 1.0)) or 1.0
    if kind in ("default", "dynamic"):
        return np.asarray(plain)
    if kind == "linear":
        return np.asarray(plain / factor)
    if kind == "yarn":
        return _yarn(config, scaling, plain, base, size, factor)
    return _llama3(config, scaling, plain, factor) if kind == "llama3" else None


def _dimension(config: dict[str, Any], scaling: dict[str, Any]) -> int:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("qk_rope_head_dim") or config.get("head_dim")
    if not size and type(heads) is int and type(hidden) is int and heads > 0:
        size = hidden // heads
    share = number(scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) or 1.0
    return int(size * share) if type(size) is int and 0 < size < 2**20 else 0


def _yarn(
    config: dict[str, Any], scaling: dict[str, Any], plain: Floats, base: float, size: int, factor: float
) -> Floats | None:
    length = number(
        scaling.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 0
    )
    fast, slow = number(scaling.get("beta_fast") or 32.0), number(scaling.get("beta_slow") or 1.0)
    if not length or not fast or not slow:
        return None
    ends = [size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow)]
    if scaling.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0.0), min(ends[1], size - 1.0)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0.0, 1.0)
    return np.asarray(plain / factor * ramp + plain * (1 - ramp))


def _llama3(config: dict[str, Any], scaling: dict[str, Any], plain: Floats, factor: float) -> Floats | None:
    length = number(scaling.get("original_max_position_embeddings"))
    low, high = number(scaling.get("low_freq_factor")), number(scaling.get("high_freq_factor"))
    if not length or not low or not high or low == high:
        return None
    turns = length * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray((1 - smooth) * plain / factor + smooth * plain)
