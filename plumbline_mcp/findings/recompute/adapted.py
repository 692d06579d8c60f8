"""Adapters of a built model beside those that the recipe gives: on which layers, of which rank and factor.

Which layers a recipe names is written in the documentation of peft's ``LoraConfig``: a list names ends of
layers' names, a text is a regular expression for a whole name.
"""

import re
from collections.abc import Iterator

from plumbline_mcp.findings.recompute.answer import Flaw, unknown
from plumbline_mcp.findings.recompute.built_record import BuiltRank, Line
from plumbline_mcp.findings.recompute.reading import number
from plumbline_mcp.findings.recompute.recipe import Recipe

_NARROWING = ("exclude_modules", "layers_to_transform", "layers_pattern", "target_parameters")


def adapter_flaws(recipe: Recipe, built: list[BuiltRank], linear: dict[str, bool]) -> Iterator[Flaw]:
    """Every named layer has one adapter of its rank and factor, and no other has any.

    ``linear``: layers of the release that have a matrix, and whether naming all linear layers names it.
    """
    wanted = set[str]() if recipe.lora is None else _named(recipe.lora, linear)
    if wanted is None or (recipe.lora is not None and not wanted):
        yield unknown("adapters", "targets-unknown", "which layers the recipe adapts is not worked out here")
    for each in built:
        found = each.adapters()
        for name in sorted(found):
            if recipe.lora is None or (wanted and name not in wanted):
                yield Flaw("adapters", "adapter-unexpected", {"tensor": name, "rank": each.rank})
            if recipe.lora is not None:
                yield from _held(recipe, name, found[name], each.rank)
        for name in sorted((wanted or set()) - found.keys()):
            yield Flaw("adapters", "adapter-missing", {"tensor": name, "rank": each.rank})


def _named(lora: Line, linear: dict[str, bool]) -> set[str] | None:
    """The layers that a recipe names; None where more than names decides."""
    targets = lora.get("target_modules")
    if any(lora.get(key) is not None for key in _NARROWING) or targets is None:
        return None
    if targets == "all-linear":
        return {name for name, included in linear.items() if included}
    if isinstance(targets, str):
        return {name for name in linear if re.fullmatch(targets, name)}
    return {name for name in linear for end in targets if f".{name}".endswith(f".{end}")}


def _held(recipe: Recipe, name: str, adapters: list[Line], rank: int) -> Iterator[Flaw]:
    where = {"tensor": name, "rank": rank}
    if len(adapters) != 1:
        yield Flaw("adapters", "adapters-stacked", where, float(len(adapters)), 1.0)
        return
    one, size, factor = adapters[0], recipe.adapter_rank(name), recipe.adapter_scaling(name)
    if one.get("rank") != size:
        yield Flaw("adapters", "rank-differs", where, number(one.get("rank")), float(size))
    if number(one.get("scaling")) != factor:
        yield Flaw("adapters", "scaling-differs", where, number(one.get("scaling")), factor)
    if one.get("merged") or one.get("active") is False:
        yield Flaw("adapters", "adapter-inactive", where)
