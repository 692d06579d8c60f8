"""A built model as it stands: its live configuration, and what each module holds itself (``built.jsonl``).

The configuration is that of the object in memory, not of a file. A module's values are its own attributes
that are plain: numbers, switches, texts, short lists of them, and the names of functions.
"""

from collections.abc import Iterator

import torch
from plumbline_recorder.parameter_names import class_name, plain_name, unwrapped
from plumbline_recorder.reading import local, quiet

VALUES = 96
"""Own values of one module that a line holds."""
ENTRIES = 256
"""Entries of a list that is recorded."""
CONFIG_DEPTH = 6


def built_lines(module: "torch.nn.Module") -> "Iterator[dict[str, object]]":
    """One line of the model, then one of each module."""
    inner = unwrapped(module)
    yield {
        "kind": "model",
        "class": class_name(inner),
        "training": bool(inner.training),
        "config": live_config(inner),
    }
    for name, part in inner.named_modules():
        with quiet():
            yield {
                "kind": "module",
                "name": plain_name(name),
                "class": class_name(part),
                "linear": isinstance(part, torch.nn.Linear),
                "training": bool(part.training),
                "values": own_values(part),
                "adapters": adapters_of(part),
            }


def live_config(model: "torch.nn.Module") -> "dict[str, object] | None":
    """The configuration that the model holds, as a dictionary; None where it holds none that says itself."""
    config = getattr(model, "config", None)
    as_dict = getattr(config, "to_dict", None)
    found = as_dict() if callable(as_dict) else config
    return bounded(found, CONFIG_DEPTH) if isinstance(found, dict) else None


def bounded(value: object, depth: int) -> object:
    """A value with its lists cut and what lies too deep left out."""
    if isinstance(value, dict):
        return {str(key): bounded(entry, depth - 1) for key, entry in value.items()} if depth else {}
    if isinstance(value, (list, tuple)):
        return [bounded(entry, depth - 1) for entry in value[:ENTRIES]] if depth else []
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)[:200]


def own_values(module: "torch.nn.Module") -> "dict[str, object]":
    """Public attributes of a module that are plain, in their order."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training" or len(found) >= VALUES:
            continue
        kept, plain = _plain(value)
        if kept:
            found[name] = plain
    return found


def _plain(value: object) -> "tuple[bool, object]":
    if value is None or isinstance(value, (bool, int, float)):
        return True, value
    if isinstance(value, str):
        return True, str(value)[:200]
    if isinstance(value, (list, tuple)) and len(value) <= ENTRIES:
        entries = [_plain(entry) for entry in value]
        return all(kept for kept, _ in entries), [entry for _, entry in entries]
    if callable(value) and hasattr(value, "__qualname__"):
        return True, str(value.__qualname__)[:200]
    return False, None


def adapters_of(module: "torch.nn.Module") -> "list[dict[str, object]]":
    """Each LoRA adapter of a layer: rank by the shape of A, alpha and factor as the layer holds them."""
    firsts, factors = getattr(module, "lora_A", None), getattr(module, "scaling", None)
    if not isinstance(firsts, torch.nn.ModuleDict) or not isinstance(factors, dict):
        return []
    alphas = getattr(module, "lora_alpha", None)
    active = getattr(module, "active_adapters", None)
    return [
        {
            "adapter": str(name),
            "rank": int(local(first.weight).shape[0]) if hasattr(first, "weight") else None,
            "alpha": alphas.get(name) if isinstance(alphas, dict) else None,
            "scaling": factors.get(name),
            "active": name in active if isinstance(active, (list, tuple)) else None,
            "merged": bool(getattr(module, "merged", False)),
        }
        for name, first in firsts.items()
    ]
