"""What ranks recorded of a built model beside its tensors, under the names of the model without adapters."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from plumbline_mcp.findings.recompute.model_record import Entry
from plumbline_mcp.findings.recompute.reading import Cannot, Record

_OUTER = "base_model.model."
_WRAPPED = re.compile(r"\.(?:base_layer|original_module)(?![^.])")
_ADDED = re.compile(r"(?:^|\.)(?:lora_[A-Za-z0-9_]+|modules_to_save)(?![^.])")
_ACTIVATIONS = ("act_fn", "activation_fn", "act")
Line = dict[str, Any]


@dataclass(frozen=True)
class BuiltRank:
    """``config``: the live configuration, None where the model holds none; ``modules`` by recorded name."""

    rank: int
    config: Line | None = field(repr=False)
    modules: dict[str, Line] = field(repr=False)

    @property
    def plain(self) -> dict[str, Line]:
        """Modules by their names without adapters: what is wrapped stands for its wrapper."""
        found: dict[str, Line] = {}
        for name in sorted(self.modules, key=lambda each: len(_WRAPPED.findall(each))):
            if not is_added(name):
                found[without_adapter(name)] = self.modules[name]
        return found

    def values(self) -> Iterator[tuple[str, str, Any]]:
        """(module, attribute, value); an activation that is a module is a value of its holder: the class."""
        for name, line in self.plain.items():
            holder, _, last = name.rpartition(".")
            if last in _ACTIVATIONS:
                yield holder, last, line.get("class")
            own = line.get("values")
            for attribute, value in own.items() if isinstance(own, dict) else ():
                yield name, attribute, value

    def adapters(self) -> dict[str, list[Line]]:
        """What is put on each layer that has an adapter."""
        found: dict[str, list[Line]] = {}
        for name, line in self.modules.items():
            held = line.get("adapters")
            if isinstance(held, list) and held:
                found[without_adapter(name)] = [each for each in held if isinstance(each, dict)]
        return found


def is_added(name: str) -> bool:
    """Whether a tensor or a module is an adapter's own."""
    return bool(_ADDED.search(name))


def without_adapter(name: str) -> str:
    """A name as it is in the model that is adapted."""
    return "" if f"{name}." == _OUTER else _WRAPPED.sub("", name.removeprefix(_OUTER))


def unwrapped(held: dict[str, list[Entry]]) -> dict[str, list[Entry]]:
    """Tensors by their names without adapters."""
    found = {}
    for name, entries in held.items():
        plain = without_adapter(name)
        found[plain] = [replace(each, name=plain, line=_renamed(each.line, plain)) for each in entries]
    return found


def _renamed(line: Line, plain: str) -> Line:
    shared = line.get("same_as")
    return {**line, "name": plain, "same_as": without_adapter(shared) if isinstance(shared, str) else None}


def read_built(record: Record) -> list[BuiltRank]:
    """Every rank that ended well and recorded everything. Raises `Cannot`."""
    found = []
    for rank, folder in sorted(record.rank_folders.items()):
        if record.recorder_failed(rank) or not record.ended_well(rank):
            continue
        config, modules = None, dict[str, Line]()
        for line in record.lines(f"{folder}/built.jsonl"):
            if line.get("kind") == "model":
                config = line["config"] if isinstance(line.get("config"), dict) else None
            elif str(line.get("name")) in modules:
                raise Cannot(f"rank {rank} recorded the module {str(line.get('name'))[:200]} twice")
            else:
                modules[str(line.get("name"))] = line
        if modules:
            found.append(BuiltRank(rank, config, modules))
    return found


def read_launches(record: Record) -> dict[str, Line]:
    """How each launch of refused settings ended, by its name. Raises `Cannot`."""
    names = [name for name in record.names("records/") if name.endswith("/refusals.jsonl")]
    return {str(line.get("name")): line for name in names for line in record.lines(name)}
