"""The adapters: on which layers, of which rank, added with which factor."""

from collections.abc import Iterator

from checks.building.adapted_names import base_name
from checks.building.case import BuildCase
from checks.loading.kinds import listed
from checks.loading.parts import not_applicable
from checks.records.built_models import AdapterLine, BuiltModel
from checks.references.recipe import Lora
from checks.rules import MAX_PROBLEMS_LISTED
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of

ALL_LINEAR = "all-linear"


def adapters_part(case: BuildCase) -> Part:
    """Every layer that the recipe adapts has one adapter of its rank and factor, and no other layer has."""
    lora, put_on = case.trained.lora, [(each, _adapters(each)) for each in case.built]
    if lora is None:
        stray = [
            _stray(name, each.rank, "the recipe adapts nothing") for each, found in put_on for name in found
        ]
        return (
            part_of("adapters", stray) if stray else not_applicable("adapters", "the recipe adapts nothing")
        )
    wanted = None if case.unfollowed else targets(case, lora)
    problems = [] if wanted else [_unknown(case)]
    judged = 0
    for each, found in put_on:
        judged += len(found)
        problems += list(_factors(each.rank, found, lora))
        if wanted:
            problems += [_absent(name, each.rank) for name in sorted(wanted - set(found))]
            why = "target_modules does not name it"
            problems += [_stray(name, each.rank, why) for name in sorted(set(found) - wanted)]
    coverage = Coverage(judged=judged, total=judged, unit="adapted layers")
    return part_of("adapters", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def targets(case: BuildCase, lora: Lora) -> set[str] | None:
    """The linear layers that the recipe adapts; None where it names none."""
    linear = {name for name, part in case.reference.modules.items() if part.linear}
    if lora.target_modules == ALL_LINEAR:
        return linear - {case.reference.head}
    if lora.target_modules is None:
        return None
    return {name for name in linear if lora.targets(name)}


def _adapters(built: BuiltModel) -> dict[str, tuple[AdapterLine, ...]]:
    return {base_name(name): line.adapters for name, line in built.modules.items() if line.adapters}


def _factors(rank: int, found: dict[str, tuple[AdapterLine, ...]], lora: Lora) -> Iterator[Problem]:
    for name, adapters in sorted(found.items()):
        if len(adapters) != 1:
            yield _problem("adapters-stacked", name, rank, "1 adapter", f"{len(adapters)} adapters")
        held = adapters[0]
        if held.rank != lora.rank(name):
            yield _problem("rank-differs", name, rank, f"rank {lora.rank(name)}", f"rank {held.rank}")
        if held.scaling != lora.scaling(name):
            wanted = f"factor {lora.scaling(name):.6g}"
            yield _problem("scaling-differs", name, rank, wanted, f"factor {held.scaling}")
        if held.merged or held.active is False:
            state = "merged" if held.merged else "inactive"
            yield _problem("adapter-inactive", name, rank, "an active adapter", f"one that is {state}")


def _problem(code: str, name: str, rank: int, wanted: str, found: str) -> Problem:
    return Problem(
        code=code,
        message=f"{name} has {found}, the recipe gives {wanted}",
        place=Place(tensor=name, rank=rank),
        expected=wanted,
        found=found,
        next_step="look at how rank, alpha and their patterns reach this layer",
    )


def _absent(name: str, rank: int) -> Problem:
    return Problem(
        code="adapter-missing",
        message=f"{name} has no adapter, and the recipe's target_modules names it",
        place=Place(tensor=name, rank=rank),
        next_step="look at how target_modules is matched against the model's names",
    )


def _stray(name: str, rank: int, why: str) -> Problem:
    return Problem(
        code="adapter-unexpected",
        message=f"{name} has an adapter: {why}",
        place=Place(tensor=name, rank=rank),
        next_step="look at how target_modules is matched against the model's names",
    )


def _unknown(case: BuildCase) -> Problem:
    if case.unfollowed:
        why = f"the recipe's {listed(list(case.unfollowed))} also decide which layers are adapted"
    elif case.trained.lora is not None and case.trained.lora.target_modules is not None:
        why = "the recipe's target_modules names no linear layer of the reference"
    else:
        why = "the recipe names no target_modules, and the adapter's library then chooses them itself"
    return Problem(
        code="targets-unknown",
        outcome=Outcome.INCONCLUSIVE,
        message=f"which layers are to be adapted is not known: {why}",
        next_step='name them: lora={"target_modules": ["q_proj", "v_proj"], ...}',
    )
