"""Which tensors of a release a framework's parameters are made of: a pack's ``names.toml``, read as data.

Patterns hold ``{x}`` for digits and ``{x*}`` for any characters; the first rule that fits a tensor counts;
what no rule fits keeps its name (docs/adding-a-framework.md).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from plumbline_mcp.findings.recompute.decoding import Floats
from plumbline_mcp.findings.recompute.reading import Cannot
from plumbline_mcp.findings.recompute.recipe import built_in_pack, pack_file

Table = dict[str, Any]
_HOLE = re.compile(r"\{([a-z][a-z0-9_]{0,31})(\*?)\}")
_MOST_OPEN = 2
"""Placeholders for any characters in one pattern: one more multiplies a match's steps by the length."""


@dataclass(frozen=True)
class Made:
    """A parameter: for every pattern of its rule the release's tensors in order, and what is done to them."""

    name: str
    sources: tuple[tuple[str, ...], ...]
    steps: tuple[Table, ...] = ()
    part: int = 0
    parts: int = 1

    @property
    def tensors(self) -> list[str]:
        """Every tensor of the release that it is made of."""
        return [name for names in self.sources for name in names]

    def build(self, read: Callable[[str], Floats], config: Table) -> Floats:
        """float64 of the parameter. Raises `Cannot` where the tensors do not fit together."""
        arrays = [[read(name) for name in names] for names in self.sources]
        first = self.steps[0] if self.steps else {}
        try:
            if first.get("op") == "stack":
                values = [np.stack(each) for each in arrays]
            elif first.get("over"):
                values = [np.concatenate(each, int(first.get("axis", 0))) for each in arrays]
            else:
                values = [each[0] for each in arrays]
            for step in self.steps:
                values = values if step.get("over") else self._after(step, values, config)
        except (ValueError, IndexError) as error:
            raise Cannot(f"{self.name[:200]} cannot be made as the name map says: {error}") from error
        return values[0]

    def _after(self, step: Table, values: list[Floats], config: Table) -> list[Floats]:
        axis = int(step.get("axis", 0))
        match step.get("op"):
            case "concat":
                return [np.concatenate(values, axis)]
            case "interleave":
                shape = list(values[0].shape)
                shape[axis] *= len(values)
                return [np.stack(values, axis + 1).reshape(shape)]
            case "transpose":
                return [np.swapaxes(each, -1, -2) for each in values]
            case "split":
                sizes = [_length(each, config) for each in step.get("sizes", [])]
                length = values[0].shape[axis]
                sizes = sizes or [length // self.parts] * self.parts
                if sum(sizes) != length:
                    raise Cannot(f"{self.name[:200]}: {sizes} do not sum up to {length}")
                first = sum(sizes[: self.part])
                return [np.take(values[0], range(first, first + sizes[self.part]), axis)]
        return values


def _length(factors: Any, config: Table) -> int:
    product = 1
    for factor in factors if isinstance(factors, list) else []:
        value = config.get(factor) if isinstance(factor, str) else factor
        if type(value) is not int or value < 1:
            raise Cannot(f"the configuration's {str(factor)[:60]} is no length")
        product *= value
    return product


@dataclass(frozen=True)
class NamesMap:
    """The rules that apply to a model type at a version; ``covers``: whether the map is whole for it."""

    rules: tuple[Table, ...]
    kept: tuple[Table, ...]
    covers: bool

    @classmethod
    def of(cls, pack: Path | None, model_type: str, distributions: dict[str, str]) -> "NamesMap":
        """Read a pack's map. Raises `Cannot`."""
        raw = pack_file(pack, "names.toml")
        if isinstance(raw.get("same_as"), str):
            raw = pack_file(built_in_pack(raw["same_as"]), "names.toml")
        version = distributions.get(str(raw.get("distribution", "")), "")
        fitting = {
            kind: tuple(each for each in raw.get(kind, []) if _applies(each, model_type, version))
            for kind in ("rule", "kept")
        }
        return cls(fitting["rule"], fitting["kept"], model_type in raw.get("covers", []))

    def made(self, tensors: list[str]) -> dict[str, Made]:
        """Every parameter that a release's tensors make. Raises `Cannot` for a hole in a stack."""
        found: dict[str, Made] = {}
        gathered: dict[tuple[int, tuple[str, ...]], dict[tuple[int, int], str]] = {}
        for name in tensors:
            place = self._place(name)
            if place is None:
                _put(found, Made(name, ((name,),)))
            else:
                gathered.setdefault(place[:2], {})[place[2:]] = name
        for (number, targets), parts in gathered.items():
            rule = self.rules[number]
            if not rule.get("operations"):
                _put(
                    found,
                    *(Made(rule_target, ((name,),)) for rule_target in targets for name in parts.values()),
                )
                continue
            count = 1 + max(index for _, index in parts)
            wanted = [[(at, index) for index in range(count)] for at in range(len(rule["from"]))]
            if count > len(parts) or any(key not in parts for keys in wanted for key in keys):
                raise Cannot(f"{targets[0][:200]} lacks one of the tensors that make it")
            sources = tuple(tuple(parts[key] for key in keys) for keys in wanted)
            for part, target in enumerate(targets):
                _put(found, Made(target, sources, tuple(rule.get("operations", [])), part, len(targets)))
        return found

    def _place(self, name: str) -> tuple[int, tuple[str, ...], int, int] | None:
        """(rule, targets, pattern, number stacked over) of a tensor."""
        for number, rule in enumerate(self.rules):
            steps = rule.get("operations", [])
            over = steps[0].get("over") if steps else None
            for at, pattern in enumerate(rule["from"]):
                match = _expression(pattern).fullmatch(name)
                if match:
                    values = match.groupdict()
                    index = int(values.pop(over)) if over else 0
                    targets = rule["to"] if steps else [rule["to"][at]]  # without operations: renamed
                    return number, tuple(_filled(target, values) for target in targets), at, index
        return None

    def kept_wider(self, name: str, dtype: str) -> bool:
        """Whether the framework documents to keep a parameter in float32 where the recipe says ``dtype``."""
        return any(
            dtype in each.get("where", []) and any(_expression(p).fullmatch(name) for p in each["parameters"])
            for each in self.kept
        )


def _put(found: dict[str, Made], *made: Made) -> None:
    for one in made:
        if one.name in found:
            raise Cannot(f"the name map makes {one.name[:200]} twice")
        found[one.name] = one


def _filled(target: str, values: dict[str, str]) -> str:
    return _HOLE.sub(lambda hole: values.get(hole[1], ""), target)


def _expression(pattern: str) -> re.Pattern[str]:
    if sum(1 for hole in _HOLE.finditer(pattern) if hole[2]) > _MOST_OPEN:
        raise Cannot(f"{pattern[:200]!r} has too many placeholders for any characters")
    text, at = "", 0
    for hole in _HOLE.finditer(pattern):
        text += re.escape(pattern[at : hole.start()])
        text += f"(?P<{hole[1]}>{'.*' if hole[2] else '[0-9]{1,6}'})"
        at = hole.end()
    return re.compile(text + re.escape(pattern[at:]))


def _applies(entry: Table, model_type: str, version: str) -> bool:
    types = entry.get("model_types", [])
    if types and model_type not in types:
        return False
    if not entry.get("versions"):
        return True
    try:
        return SpecifierSet(entry["versions"]).contains(Version(version), prereleases=True)
    except (InvalidVersion, InvalidSpecifier) as error:
        raise Cannot(f"the name map depends on a version that the run does not tell: {error}") from error
