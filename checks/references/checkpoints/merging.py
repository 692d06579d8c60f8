"""What a LoRA adapter makes of its base: W + s B A in float64, and how far rounding may take a merge from it.

Sources: LoRA (Hu et al. 2021), section 4.1: h = W x + (alpha / r) B A x; rank-stabilised LoRA (Kalajdzievski
2023): alpha / sqrt(r). File names and keys: the PEFT checkpoint format.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checks.errors import NotEvaluated
from checks.references.checkpoints.folder import Checkpoint, open_weights
from checks.references.checkpoints.formats import FORMATS, Floats, Format, decode
from checks.references.checkpoints.layouts import Values, grid
from checks.references.checkpoints.tensors import Tensor
from checks.rules import MERGE_ROUNDINGS, MERGE_SLACK

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_UNDERSTOOD = frozenset(
    (
        *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision"),
        *("inference_mode", "runtime_config", "megatron_core", "r", "lora_alpha", "lora_dropout"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern"),
        *("alpha_pattern", "fan_in_fan_out", "use_rslora", "bias", "modules_to_save", "ensure_weight_tying"),
        *("init_lora_weights", "loftq_config", "corda_config", "eva_config", "qalora_group_size"),
    )
)
"""Fields that are followed or do not decide what a merge is; any other one that is set is refused."""
_SAME_BASE = (True, False, None, "gaussian", "orthogonal", "eva")
"""Initialisations that leave the base weights as they are."""
_KEY = re.compile(
    r"^(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(?:\.weight|\.default|\.default\.weight)?$"
)


@dataclass(frozen=True)
class Update:
    """One adapted module: its weight changes by ``scale * left @ right``, [rows, r] and [r, columns]."""

    module: str
    scale: float
    left: Floats
    right: Floats
    format: Format

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the change."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def is_zero(self) -> bool:
        """Whether the update changes nothing at all (B or A is zero)."""
        return self.scale == 0 or not self.left.any() or not self.right.any()


@dataclass(frozen=True)
class Adapter:
    """A parsed adapter: updates by module, and tensors it replaces whole by their name in the release."""

    path: Path
    updates: dict[str, Update]
    replaced: dict[str, Tensor]
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Merged:
    """W + s B A in float64."""

    base: Values
    update: Update

    @property
    def shape(self) -> tuple[int, ...]:
        """The base's shape."""
        return self.base.shape

    def rows(self, first: int, last: int) -> Floats:
        """Rows of the merged weight."""
        update = self.update
        change: Floats = (update.left[first:last] @ update.right) * update.scale
        return self.base.rows(first, last).astype(np.float64) + change


@dataclass(frozen=True)
class MergeBound:
    """How far each element of a merge may lie from `Merged` (derived at `MERGE_ROUNDINGS` in the rules)."""

    merged: Merged
    format: Format

    @property
    def shape(self) -> tuple[int, ...]:
        """The base's shape."""
        return self.merged.shape

    def rows(self, first: int, last: int) -> Floats:
        """The allowed distance, [last - first, columns]."""
        update, unit = self.merged.update, self.format.roundoff
        left = update.left[first:last]
        change = np.abs((left @ update.right) * update.scale)
        terms = (np.abs(left) @ np.abs(update.right)) * abs(update.scale)
        cast = unit if update.format.roundoff < unit else 0.0
        rank = update.left.shape[1]
        per_term = 2 * cast + (rank + 2) * FORMATS["F32"].roundoff
        whole = np.abs(self.merged.rows(first, last))
        bound: Floats = MERGE_SLACK * (unit * whole + MERGE_ROUNDINGS * unit * change + per_term * terms)
        return bound + np.finfo(np.float32).tiny


def read_adapter(folder: Path) -> Adapter:
    """Read a LoRA adapter. Raises `Unreadable`, `FileNotFoundError`, `NotEvaluated` (cannot be merged)."""
    checkpoint = open_weights(folder, WEIGHTS)
    config = checkpoint.json("adapter_config.json")
    if config is None:
        raise FileNotFoundError(f"{folder} has no adapter_config.json")
    _refuse_unknown(config)
    pairs: dict[str, dict[str, Tensor]] = {}
    replaced: dict[str, Tensor] = {}
    for key, tensor in checkpoint.tensors.items():
        name = key.removeprefix(_PREFIX)
        match = _KEY.match(name)
        if match:
            pairs.setdefault(match["module"], {})[match["part"]] = tensor
        else:
            replaced[_whole_name(name)] = tensor
    if not pairs and not replaced:
        raise NotEvaluated(f"the adapter in {folder} holds no tensor", "name the adapter that was trained")
    updates = {module: _update(module, parts, config) for module, parts in pairs.items()}
    return Adapter(folder, updates, replaced, checkpoint)


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise NotEvaluated(
            f"the adapter is of type {str(config.get('peft_type'))[:40]!r}; only LORA is merged here"
        )
    for name, value in config.items():
        if name not in _UNDERSTOOD and value not in (None, False, {}, [], ""):
            raise NotEvaluated(
                f"the adapter sets {name[:60]} = {str(value)[:60]}, which this version does not merge",
                "compare the merged export with --trained, the checkpoint the merge should equal",
            )
    if config.get("init_lora_weights", True) not in _SAME_BASE:
        raise NotEvaluated(
            f"the adapter was initialised by {str(config['init_lora_weights'])[:40]},"
            " which changes the base weights",
            "convert it to plain LoRA, or compare with --trained",
        )


def _whole_name(name: str) -> str:
    """The release's name of a tensor that the adapter stores whole."""
    return (
        name.replace(".modules_to_save.default.", ".")
        .replace(".modules_to_save.", ".")
        .replace(".base_layer.", ".")
    )


def _update(module: str, parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> Update:
    embedding = "lora_embedding_A" in parts
    names = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A", "lora_B")
    if set(parts) != set(names):
        raise NotEvaluated(f"the adapter holds {sorted(parts)} for {module[:200]}, not an A and a B")
    a, b = (_matrix(parts[name]) for name in names)
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise NotEvaluated(f"A {list(a.shape)} and B {list(b.shape)} of {module[:200]} do not multiply")
    stated = _pattern(config.get("rank_pattern"), module, config.get("r"))
    if stated != rank:
        raise NotEvaluated(
            f"{module[:200]} has rank {rank}, the adapter's configuration says {str(stated)[:20]}"
        )
    alpha = _pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", rank))
    if not isinstance(alpha, int | float):
        raise NotEvaluated(f"the adapter's lora_alpha for {module[:200]} is {str(alpha)[:40]!r}, no number")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    narrowest = max((parts[name].format for name in names), key=lambda fmt: fmt.roundoff)
    if embedding or config.get("fan_in_fan_out"):
        return Update(module, scale, np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), narrowest)
    return Update(module, scale, b, a, narrowest)


def _matrix(tensor: Tensor) -> Floats:
    if len(tensor.shape) != 2 or not tensor.format.is_float:
        raise NotEvaluated(f"{tensor.name[:200]} is {tensor.dtype} {list(tensor.shape)}, no matrix of floats")
    return decode(tensor.codes(), tensor.format).reshape(grid(tensor.shape)).astype(np.float64)


def _pattern(patterns: Any, module: str, default: Any) -> Any:
    """The value of the first pattern that names the module, by whole path components.

    PEFT reads the keys as regular expressions; only plain names are followed here, since an expression from
    an untrusted file may never end.
    """
    for key, value in (patterns or {}).items():
        plain = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if not re.fullmatch(r"[A-Za-z0-9_.]+", plain):
            raise NotEvaluated(f"the adapter's pattern {key[:100]!r} is no plain module name")
        if module == plain or (not key.startswith("^") and module.endswith(f".{plain}")):
            return value
    return default
