"""Names in a model that peft wrapped, and the names that the same parts have in the model without it."""

import re
from collections.abc import Mapping
from dataclasses import replace

from checks.records.model_records import RankModel, Recorded

_PREFIX = "base_model.model."
_ADAPTER = re.compile(r"(^|\.)(lora_\w+|modules_to_save)(\.|$)")
_BASE = re.compile(r"\.(base_layer|original_module)(?=\.|$)")


def is_adapter(name: str) -> bool:
    """Whether a parameter or module is the adapter's, not the model's."""
    return _ADAPTER.search(name) is not None


def base_name(name: str) -> str:
    """The name in the model without adapters; an adapter's own name loses the wrapper's prefix alone."""
    return "" if f"{name}." == _PREFIX else _BASE.sub("", name.removeprefix(_PREFIX))


def is_inside(name: str) -> bool:
    """Whether a module is the one inside a wrapper that has the same base name."""
    return f"{name}." == _PREFIX or _BASE.search(name) is not None


def without_wrappers(rank: RankModel) -> RankModel:
    """A rank's records under the names of the model without adapters."""
    return replace(rank, moments={when: _renamed(entries) for when, entries in rank.moments.items()})


def _renamed(entries: Mapping[str, Recorded]) -> dict[str, Recorded]:
    found = {}
    for name, entry in entries.items():
        same_as = entry.line.same_as
        new = {"name": base_name(name), "same_as": base_name(same_as) if same_as else None}
        found[base_name(name)] = replace(entry, line=entry.line.model_copy(update=new))
    return found
