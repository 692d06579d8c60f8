"""What a LoRA adapter makes of its base: W + s B A in float64, and how far a merge may round from it.

Sources: Hu et al. 2021, section 4.1 (alpha / r); Kalajdzievski 2023 (alpha / sqrt(r)); keys of the PEFT
checkpoint format.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import DTYPES, Floats
from plumbline_mcp.findings.recompute.reading import Cannot, TensorFile, number, place_in
from plumbline_mcp.findings.recompute.release import document

ROUNDINGS = 3.0
"""The update's product, its scaling and its cast may each round to the export's dtype before the sum does."""
SECOND_ORDER = 1.02
"""Products of roundings: (1 + 2^-8)^4 < 1.016."""
_PART = re.compile(r"^(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<part>[AB])(\.default)?(\.weight)?$")
_PLAIN = {"use_dora", "lora_bias", "layer_replication", "target_parameters", "trainable_token_indices"}


@dataclass(frozen=True)
class Change:
    """The update of one weight: ``scale * left @ right``; ``unit`` the coarser roundoff of A and B."""

    scale: float
    left: Floats = field(repr=False)
    right: Floats = field(repr=False)
    unit: float

    def product(self) -> Floats:
        """s B A, float64."""
        return np.asarray(self.scale * (self.left @ self.right))

    def room(self, whole: Floats, dtype: str) -> Floats:
        """How far each element of a merge in a dtype may lie from W + sBA."""
        unit, rank = DTYPES[dtype].unit, self.left.shape[1]
        terms = np.abs(self.left) @ np.abs(self.right) * abs(self.scale)
        cast = 2 * unit if self.unit < unit else 0.0
        update = ROUNDINGS * unit * np.abs(self.product())
        room = unit * np.abs(whole) + update + (cast + (rank + 2) * 2.0**-24) * terms
        return np.asarray(SECOND_ORDER * room + 2.0**-126)


@dataclass(frozen=True)
class Adapter:
    """``changes`` by the weight's name; ``replaced``: tensors that the adapter stores whole."""

    changes: dict[str, Change] = field(repr=False)
    replaced: dict[str, tuple[str, bytes, Floats]] = field(repr=False)


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder. Raises `Cannot` for what is no plain LoRA."""
    config = document(folder, "adapter_config.json")
    if config is None or config.get("peft_type") != "LORA":
        raise Cannot("the adapter is no LoRA with an adapter_config.json")
    odd = next((name for name in _PLAIN if config.get(name)), None)
    if odd or config.get("init_lora_weights", True) not in (
        True,
        False,
        None,
        "gaussian",
        "orthogonal",
        "eva",
    ):
        raise Cannot(f"the adapter's {odd or 'init_lora_weights'} is not merged here")
    file = TensorFile.open(place_in(folder, "adapter_model.safetensors"))
    pairs: dict[tuple[str, bool], dict[str, str]] = {}
    replaced = {}
    for key in file.entries:
        name = key.removeprefix("base_model.model.")
        found = _PART.match(name)
        if found:
            pairs.setdefault((found["module"], bool(found["embedding"])), {})[found["part"]] = key
        else:
            plain = re.sub(r"\.(modules_to_save(\.default)?|base_layer)\.", ".", name)
            replaced[plain] = (file.dtype(key), file.raw(key), file.array(key))
    changes = {f"{m}.weight": _change(file, config, m, e, keys) for (m, e), keys in pairs.items()}
    return Adapter(changes, replaced)


def _change(
    file: TensorFile, config: dict[str, Any], module: str, embedding: bool, keys: dict[str, str]
) -> Change:
    if set(keys) != {"A", "B"}:
        raise Cannot(f"the adapter holds no A and B of {module[:200]}")
    a, b = file.array(keys["A"]), file.array(keys["B"])
    rank = number(_stated(config.get("rank_pattern"), module, config.get("r")))
    alpha = number(_stated(config.get("alpha_pattern"), module, config.get("lora_alpha")))
    if rank is None or alpha is None or a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == rank:
        raise Cannot(f"A and B of {module[:200]} do not have the rank that the adapter states")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    unit = max(DTYPES[file.dtype(key)].unit for key in keys.values())
    if embedding or config.get("fan_in_fan_out"):
        return Change(scale, np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), unit)
    return Change(scale, b, a, unit)


def _stated(patterns: Any, module: str, default: Any) -> Any:
    """The value of the first pattern that is the module's name or its end; only plain names are read."""
    for key, value in (patterns or {}).items():
        plain = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if not re.fullmatch(r"[A-Za-z0-9_.]+", plain):
            raise Cannot(f"the adapter's pattern {key[:100]!r} is no plain module name")
        if module == plain or (not key.startswith("^") and module.endswith(f".{plain}")):
            return value
    return default
