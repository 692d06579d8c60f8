"""The parts on values that shape computation: in the live configuration, in modules, and their modes."""

from collections.abc import Mapping
from typing import Any

from checks.building.case import BuildCase
from checks.building.quantities import (
    ATTRIBUTES,
    CHILDREN,
    DROPOUTS,
    OTHER_NAMES,
    QUANTITIES,
    Quantity,
    same,
    stated,
)
from checks.building.reference import ReferenceModule
from checks.loading.kinds import listed
from checks.records.built_models import BuiltLine, BuiltModel
from checks.rules import MAX_PROBLEMS_LISTED
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of

_ABSENT = object()
_CONFIG_STEP = (
    "look at what changes the configuration between its file and the model: an option, a default, a map"
)
_VALUE_STEP = (
    "look at how this module is given the value: by the configuration, an option, or a constant in code"
)


def config_part(case: BuildCase) -> Part:
    """The configuration in memory has every value of the table as the official one has it."""
    configs = list(case.configs())
    if not configs:
        problem = Problem(
            code="config-unknown",
            outcome=Outcome.INCONCLUSIVE,
            message="no rank recorded a configuration of the model in memory",
            next_step="hand the recorder a model that holds its configuration as `config`",
        )
        return part_of("config", [problem])
    official = {key: (quantity, value) for quantity, key, value in stated(case.reference.config)}
    covered = {entry.name for entry in QUANTITIES if _in_modules(case, entry)}
    problems, absent = dict[str, Problem](), set[str]()
    for rank, config in configs:
        live = {key: value for _, key, value in stated(config)}
        for key, (quantity, value) in official.items():
            wanted = case.dropout if quantity is DROPOUTS and case.dropout is not None else value
            found = live.get(key, _ABSENT)
            if found is _ABSENT:
                absent |= set() if wanted is None or quantity.name in covered else {key}
            elif not same(wanted, found):
                problems.setdefault(key, _config(key, wanted, found, rank))
    unknown = sorted(absent)
    if unknown:
        problems["absent"] = Problem(
            code="config-unknown",
            outcome=Outcome.INCONCLUSIVE,
            message=f"the configuration in memory has no {listed(unknown)}, and no module holds it",
            next_step="let the binding hand over a model whose configuration or modules hold these values",
        )
    coverage = Coverage(judged=len(official) - len(unknown), total=len(official), unit="configuration values")
    return part_of("config", problems.values(), coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def _in_modules(case: BuildCase, quantity: Quantity) -> bool:
    """Whether some module holds a value of the quantity itself, so that `computation_part` judges it."""
    return any(
        not line.values.keys().isdisjoint(quantity.attributes)
        or line.name.rpartition(".")[2] in quantity.children
        for each in case.built[:1]
        for line in each.modules.values()
    )


def _config(key: str, wanted: Any, found: Any, rank: int) -> Problem:
    return Problem(
        code="config-differs",
        message=f"{key} is {_shown(found)} in the model's configuration, the official one has"
        f" {_shown(wanted)}",
        place=Place(field=key, rank=rank),
        expected=_shown(wanted),
        found=_shown(found),
        next_step=_CONFIG_STEP,
    )


def computation_part(case: BuildCase) -> Part:
    """Every module holds the table's values as the reference's module of its name does."""
    problems = list[Problem]()
    judged = total = 0
    met: set[str] = set()
    missing: set[str] = set()
    for name, reference in sorted(case.reference.modules.items()):
        for attribute, value in reference.values.items():
            total += 1
            wanted = case.dropout if _is_dropout(attribute) and case.dropout is not None else value
            found, wrong = _held(case, name, attribute, reference, wanted)
            judged += found
            (met if found else missing).add(attribute)
            if wrong is not None:
                problems.append(wrong)
    unmet = sorted(each for each in missing - met if not (ATTRIBUTES | CHILDREN)[each].by_shape)
    if unmet:
        problems.append(_unmet(case, unmet))
    quantities = {(ATTRIBUTES | CHILDREN)[attribute].name for attribute in met}
    notes = (f"values of {', '.join(sorted(quantities))}",) if quantities else ()
    coverage = Coverage(judged=judged, total=total, unit="values of modules")
    return part_of("computation", problems, coverage=coverage, notes=notes, limit=MAX_PROBLEMS_LISTED)


def _is_dropout(attribute: str) -> bool:
    return attribute in DROPOUTS.attributes


def _held(
    case: BuildCase, name: str, attribute: str, reference: ReferenceModule, wanted: Any
) -> tuple[bool, Problem | None]:
    """Whether every rank holds the value, and the first rank on which it is another."""
    found = True
    for each in case.built:
        value = _value(case.modules(each), name, attribute)
        if value is _ABSENT:
            found = False
        elif not same(wanted, value):
            return True, _value_differs(case, name, attribute, reference, wanted, value, each)
    return found and bool(case.built), None


def _value(modules: Mapping[str, BuiltLine], name: str, attribute: str) -> Any:
    if attribute in CHILDREN:
        child = modules.get(f"{name}.{attribute}")
        return child.class_ if child is not None else _ABSENT
    line = modules.get(name)
    if line is None:
        return _ABSENT
    names = (attribute, *OTHER_NAMES.get(attribute, ()))
    return next((line.values[each] for each in names if each in line.values), _ABSENT)


def _value_differs(
    case: BuildCase,
    name: str,
    attribute: str,
    reference: ReferenceModule,
    wanted: Any,
    value: Any,
    built: BuiltModel,
) -> Problem:
    quantity = (ATTRIBUTES | CHILDREN)[attribute]
    everywhere = all(not same(wanted, _value(case.modules(each), name, attribute)) for each in case.built)
    return Problem(
        code="value-differs",
        message=f"{name or 'the model'} ({reference.kind}) has {attribute} {_shown(value)}, the official"
        f" configuration gives {_shown(wanted)} ({quantity.name})",
        place=Place(tensor=name or None, field=attribute, rank=None if everywhere else built.rank),
        expected=_shown(wanted),
        found=_shown(value),
        next_step=_VALUE_STEP,
    )


def _unmet(case: BuildCase, attributes: list[str]) -> Problem:
    return Problem(
        code="value-unknown",
        outcome=Outcome.INCONCLUSIVE,
        message=f"no module of the model holds {listed(attributes)} under the reference's names",
        next_step="compare the framework's modules with the reference's by hand, or with the step check",
    )


def modes_part(case: BuildCase) -> Part:
    """Every module is in training mode when a step begins, as the reference's is."""
    problems, judged = list[Problem](), 0
    for each in case.built:
        judged += len(each.modules)
        wrong = [name for name, line in each.modules.items() if not line.training]
        if wrong:
            problems.append(
                Problem(
                    code="not-in-training",
                    message=f"{len(wrong)} modules stay in eval mode when training begins: {listed(wrong)}",
                    place=Place(tensor=wrong[0] or None, rank=each.rank),
                    next_step="look at what switches the module to eval mode, or overrides its train()",
                )
            )
    coverage = Coverage(judged=judged, total=judged, unit="modules")
    return part_of("modes", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:120]
