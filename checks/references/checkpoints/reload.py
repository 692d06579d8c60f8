"""Loads an export in the reference implementation and reads what it says about every key."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.errors import NotEvaluated, words
from checks.rules import RELOAD_BYTES


@dataclass(frozen=True)
class Reloaded:
    """What the reference implementation reported; ``error`` where it could not load at all."""

    missing: frozenset[str] = frozenset()
    unexpected: frozenset[str] = frozenset()
    mismatched: dict[str, str] = field(default_factory=dict)
    error: str = ""
    on_meta: bool = False


def reload(folder: Path, config: dict[str, Any], nbytes: int) -> Reloaded:
    """Load a checkpoint folder offline, without any code of its own.

    Weights of more than `RELOAD_BYTES` are loaded on the meta device: keys and shapes, no values. Raises
    `NotEvaluated` where the reference implementation cannot load such a checkpoint at all.
    """
    loader = _loader(config)
    _refuse_without_accelerate(config, nbytes)
    on_meta = nbytes > RELOAD_BYTES
    described = _described(loader, folder, config)
    if isinstance(described, str):
        return Reloaded(error=described, on_meta=on_meta)
    if not on_meta:
        _refuse_oversized(loader, described)
    arguments: dict[str, Any] = {"device_map": "meta"} if on_meta else {}
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        _, info = loader.from_pretrained(
            str(folder),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            dtype="auto",
            **arguments,
        )
    except Exception as error:  # noqa: BLE001 - whatever stops the reference from loading it is the finding
        return Reloaded(error=f"{type(error).__name__}: {words(str(error), 400)}", on_meta=on_meta)
    finally:
        logging.getLogger("transformers").setLevel(level)
    return Reloaded(
        missing=frozenset(info["missing_keys"]),
        unexpected=frozenset(info["unexpected_keys"]),
        mismatched=_mismatched(info["mismatched_keys"]),
        error=words("; ".join(map(str, info.get("error_msgs", []))), 400),
        on_meta=on_meta,
    )


def _described(loader: Any, folder: Path, config: dict[str, Any]) -> Any:
    """The configuration as the reference reads it, by its ``model_type``; a sentence where it reads none.

    A model class that is named outright builds its own kind of configuration from any config.json: that such
    a class loads does not show that the folder does.
    """
    from transformers import AutoConfig

    if not isinstance(config.get("model_type"), str):
        return "config.json names no model_type, by which the reference chooses configuration and model"
    try:
        described = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - whatever stops the reference from reading it is the finding
        return f"{type(error).__name__}: {words(str(error), 400)}"
    wanted = getattr(loader, "config_class", None)
    if wanted is not None and not isinstance(described, wanted):
        return (
            f"model_type {config['model_type'][:80]!r} is a {type(described).__name__}, and the architecture"
            f" {loader.__name__} takes a {wanted.__name__}"
        )
    return described


def _refuse_oversized(loader: Any, described: Any) -> None:
    """A small file may describe a model too large for the memory: count on the meta device first."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            automatic = loader is AutoModelForCausalLM
            model = AutoModelForCausalLM.from_config(described) if automatic else loader(described)
    except Exception:  # noqa: BLE001 - the load that follows meets the same error and reports it
        return
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > RELOAD_BYTES:
        raise NotEvaluated(
            f"the configuration describes a model of {size} parameters, more than are loaded here"
        )


def _mismatched(keys: Iterable[Any]) -> dict[str, str]:
    return {str(key[0]): f"{list(key[1])} on disk, {list(key[2])} in the model" for key in keys}


def _loader(config: dict[str, Any]) -> Any:
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if "auto_map" in config:
        raise NotEvaluated(
            "the configuration asks for code of its own (auto_map), which is never run",
            "compare with a release whose architecture transformers knows",
        )
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(name, str) and name.isidentifier():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and name is None:
        return AutoModelForCausalLM
    raise NotEvaluated(
        f"transformers {transformers.__version__} does not know the architecture {str(name or kind)[:80]!r}"
    )


def _refuse_without_accelerate(config: dict[str, Any], nbytes: int) -> None:
    from transformers.utils import is_accelerate_available

    if is_accelerate_available():
        return
    reason = (
        "low-precision weights" if config.get("quantization_config") else "weights beyond the memory limit"
    )
    if config.get("quantization_config") or nbytes > RELOAD_BYTES:
        raise NotEvaluated(
            f"the reference implementation loads {reason} only with accelerate, which is not installed",
            "install accelerate beside Plumbline",
        )
