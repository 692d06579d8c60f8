"""The faults that the build check injects: a few tensors and modules as a faulty build leaves them."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from checks.building.adapted_names import base_name, is_adapter
from checks.building.case import BuildCase
from checks.building.quantities import same, stated
from checks.check import NotApplicable
from checks.loading import planted
from checks.loading.assembling import distinct_boxes
from checks.loading.case import LoadCase
from checks.records.built_models import BuiltLine, BuiltModel
from checks.records.model_records import Recorded

_TENSORS = 4
"""Tensors without special meaning in the slice."""


def slice_of(case: BuildCase) -> BuildCase:
    """A few tensors and modules that are as they have to be. Raises `NotApplicable` where there is none."""
    right = [name for name, held in case.pairs_implied() if _is_right(case, name, held)]
    if not right:
        raise NotApplicable("no tensor is as the configuration implies: nothing to plant a fault into")
    trained = [name for name in right if case.trained.trained(name)]
    adapters = [name for name in case.loadable() if is_adapter(name)][:2]
    names = {*right[:_TENSORS], *trained[:1], *adapters, *_tied(case)}
    names |= set(sorted(case.computed)[:1])
    holders = {name.rpartition(".")[0] for name in names}
    valued = [name for name, part in case.reference.modules.items() if part.values]
    adapted = [
        base_name(line.name) for each in case.built[:1] for line in each.modules.values() if line.adapters
    ]
    modules = {*holders, *valued[:8], *adapted[:2]}
    return case.small(names, modules)


def _tied(case: BuildCase) -> set[str]:
    return {name for name in case.release.tied or () if name in case.loadable()}


def _is_right(case: BuildCase, name: str, held: list[Recorded]) -> bool:
    expected = case.release.expected.get(name)
    return (
        held[0].line.shape == case.implied[name]
        and (expected is None or held[0].dtype in expected.dtypes)
        and case.trained.trained(name) in (None, held[0].line.requires_grad)
    )


def _lines(case: BuildCase, names: Iterable[str], **changed: object) -> BuildCase:
    """The records of some tensors changed on every rank."""
    new: dict[tuple[int, str, str], Recorded | None] = {}
    for name in names:
        for entry in case.holders(case.moment)[name]:
            new[entry.rank, case.moment, name] = replace(entry, line=entry.line.model_copy(update=changed))
    return _build(case.with_recorded(new))


def _build(case: LoadCase) -> BuildCase:
    assert isinstance(case, BuildCase)  # noqa: S101 - copies keep their class
    return case


def _first(names: Iterable[str], why: str) -> str:
    found = next(iter(names), None)
    if found is None:
        raise NotApplicable(why)
    return found


def _parameters(case: BuildCase) -> list[str]:
    tied = _tied(case)
    return [
        name for name, held in case.pairs_implied() if name not in tied and held[0].line.kind == "parameter"
    ]


def dropped(case: BuildCase) -> BuildCase:
    """A parameter that the configuration implies and the model lacks."""
    name = _first(_parameters(case), "the slice holds the tied pair alone")
    held = case.holders(case.moment)[name]
    return _build(case.with_recorded({(entry.rank, case.moment, name): None for entry in held}))


def reshaped(case: BuildCase) -> BuildCase:
    """A parameter one row larger."""
    name = _first(
        (n for n in _parameters(case) if case.implied[n]), "the slice holds no parameter with a dimension"
    )
    shape = (case.implied[name][0] + 1, *case.implied[name][1:])
    return _lines(case, [name], shape=shape, placement=None)


def recast(case: BuildCase) -> BuildCase:
    """A parameter in another dtype."""
    names = (name for name in _parameters(case) if name in case.release.expected)
    name = _first(names, "the slice holds no tensor of the release")
    allowed = case.release.expected[name].dtypes
    dtype = next(torch for torch, own in _DTYPES.items() if own not in allowed)
    return _lines(case, [name], dtype=dtype)


_DTYPES = {"bfloat16": "BF16", "float32": "F32", "float16": "F16"}


def _switched(case: BuildCase, *, trained: bool) -> BuildCase:
    def fits(name: str, held: list[Recorded]) -> bool:
        kind, wanted = held[0].line.kind, case.trained.trained(name)
        return kind == "parameter" and held[0].dtype in _DTYPES.values() and wanted is trained

    names = (name for name, held in case.loadable().items() if fits(name, held))
    name = _first(names, f"the recipe {'trains' if trained else 'freezes'} no parameter of the slice")
    return _lines(case, [name], requires_grad=not trained)


def frozen(case: BuildCase) -> BuildCase:
    """A parameter that the recipe trains, without a gradient."""
    return _switched(case, trained=True)


def thawed(case: BuildCase) -> BuildCase:
    """A parameter that the recipe freezes, with a gradient."""
    return _switched(case, trained=False)


def untied(case: BuildCase) -> BuildCase:
    """A tied head with memory of its own."""
    return _build(planted.untied(case))


def buffer_overwritten(case: BuildCase) -> BuildCase:
    """Rotary frequencies one and a half times as large."""
    return _build(planted.buffer_overwritten(case))


def replica_changed(case: BuildCase) -> BuildCase:
    """One rank with other bytes than the rank that holds the same part."""
    for name, held in case.holders(case.moment).items():
        copies = next((each for each in distinct_boxes(held).values() if len(each) > 1), None)
        if copies is not None:
            entry = copies[-1]
            digest = hashlib.sha256(str(entry.line.sha256).encode()).hexdigest()
            line = entry.line.model_copy(update={"sha256": digest})
            changed: dict[tuple[int, str, str], Recorded | None] = {
                (entry.rank, case.moment, name): replace(entry, line=line)
            }
            return _build(case.with_recorded(changed))
    raise NotApplicable("no two ranks hold the same part of a tensor")


def _modules(case: BuildCase, change: Callable[[BuiltLine], BuiltLine]) -> BuildCase:
    built = tuple(
        replace(each, modules={name: change(line) for name, line in each.modules.items()})
        for each in case.built
    )
    return replace(case, built=built)


def value_changed(case: BuildCase) -> BuildCase:
    """A number of the table at twice its value in one module."""
    for name, part in case.reference.modules.items():
        for attribute, value in part.values.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not value:
                continue
            held = [case.modules(each).get(name) for each in case.built]
            if all(line is not None and same(line.values.get(attribute), value) for line in held):
                return _modules(case, _doubled(name, attribute, value))
    raise NotApplicable("no module of the slice holds a number of the table as the reference does")


def _doubled(name: str, attribute: str, value: float) -> Callable[[BuiltLine], BuiltLine]:
    def change(line: BuiltLine) -> BuiltLine:
        if base_name(line.name) != name or attribute not in line.values:
            return line
        return line.model_copy(update={"values": {**line.values, attribute: 2 * value}})

    return change


def config_changed(case: BuildCase) -> BuildCase:
    """One number of the official configuration at twice its value in memory."""
    for _, key, value in stated(case.reference.config):
        if not isinstance(value, int | float) or isinstance(value, bool) or not value:
            continue
        built = [_with_config(each, key, 2 * value) for each in case.built]
        if built and None not in built:
            return replace(case, built=tuple(each for each in built if each is not None))
    raise NotApplicable("the configuration in memory holds no number of the table")


def _with_config(built: BuiltModel, key: str, value: float) -> BuiltModel | None:
    """A copy with one value of its configuration changed, None where it has none of that name."""
    if built.model is None or built.model.config is None or key not in built.model.config:
        return None
    config = {**built.model.config, key: value}
    return replace(built, model=built.model.model_copy(update={"config": config}))


def left_in_eval(case: BuildCase) -> BuildCase:
    """A module that stays in eval mode."""
    name = _first(
        (line.name for each in case.built for line in each.modules.values() if line.training),
        "no module of the slice is in training mode",
    )
    return _modules(
        case, lambda line: line.model_copy(update={"training": False}) if line.name == name else line
    )


def accepted(case: BuildCase) -> BuildCase:
    """A launch of refused settings that ended well."""
    cited = {each.name for each in case.pack.refusals()} if case.pack else set[str]()
    if not any(line.name in cited for line in case.refusals):
        raise NotApplicable("the run launched nothing that the pack cites as refused")
    lines = (line.model_copy(update={"code": 0, "timed_out": False, "said": ""}) for line in case.refusals)
    return replace(case, refusals=tuple(lines))


def half_scaled(case: BuildCase) -> BuildCase:
    """An adapter at half its factor."""
    if not any(line.adapters for each in case.built for line in each.modules.values()):
        raise NotApplicable("the recipe adapts nothing")

    def change(line: BuiltLine) -> BuiltLine:
        halved = tuple(
            each.model_copy(update={"scaling": (each.scaling or 0.0) / 2}) for each in line.adapters
        )
        return line.model_copy(update={"adapters": halved})

    return _modules(case, change)
