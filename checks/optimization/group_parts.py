"""Parts ``schedule``, ``groups`` and ``adapters``: the settings that each parameter is stepped with."""

from collections import Counter
from collections.abc import Iterator

from checks.optimization.case import StepCase
from checks.records.steps import Group
from checks.rules import ADAPTER_SCALING, LEARNING_RATE_ROUNDING
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of


def schedule_part(case: StepCase) -> Part:
    """Every group of every step has the learning rate of the recipe's schedule."""
    problems, judged = list[Problem](), 0
    for step in case.steps:
        wanted = case.rate(step)
        allowed = LEARNING_RATE_ROUNDING * case.recipe.learning_rate
        for rank in case.ranks:
            line = rank.line(step)
            rates = [group.number("lr") for group in line.groups] if line else []
            judged += bool(rates) and rank is case.ranks[0]
            for number, rate in enumerate(rates):
                if rate is None or not abs(rate - wanted) <= allowed:
                    problems.append(_rate(step, rank.rank, number, wanted, rate))
    coverage = Coverage(judged=judged, total=len(case.steps), unit="steps")
    base = Measurement(name="learning rate of the recipe", value=case.recipe.learning_rate)
    return part_of("schedule", problems, coverage=coverage, measurements=(base,))


def _rate(step: int, rank: int, group: int, wanted: float, rate: float | None) -> Problem:
    return Problem(
        code="learning-rate-differs",
        message=f"group {group} is stepped with another learning rate than the schedule's",
        place=Place(step=step, rank=rank),
        expected=f"{wanted:.9g}",
        found="none" if rate is None else f"{rate:.9g}",
        next_step="look for a scheduler stepped for each rank or micro-batch, or another run length",
    )


def groups_part(case: StepCase) -> Part:
    """Every trainable parameter is held once, decays as declared, and has the recipe's hyperparameters."""
    problems: list[Problem] = []
    judged = 0
    for rank in case.ranks:
        first = next((line for line in rank.lines if line.groups and line.step not in rank.partly), None)
        if first is not None:
            judged += 1
            problems += _membership(case, rank.rank, first.step, first.groups)
    for step in case.full_steps or case.steps[:1]:
        for rank in case.ranks:
            line = rank.line(step)
            problems += _settings(case, rank.rank, step, line.groups) if line else []
    problems += [*_trainable(case), *_moved(case)]
    notes = () if case.recipe.decay or not case.recipe.weight_decay else (_UNDECLARED,)
    coverage = Coverage(judged=judged, total=case.world_size, unit="ranks")
    return part_of("groups", problems, coverage=coverage, notes=notes)


_UNDECLARED = (
    "the pack does not declare which parameters decay: each group's decay has to be the recipe's or 0"
)


def _membership(case: StepCase, rank: int, step: int, groups: tuple[Group, ...]) -> Iterator[Problem]:
    held = Counter(case.model_name(name) for group in groups for name in group.params)
    for name, count in held.items():
        place = Place(rank=rank, step=step, tensor=name)
        if name.startswith("unowned."):
            yield Problem(
                code="stale-parameter",
                message="the optimizer holds a parameter that is none of the model's, and updates it in vain",
                place=place,
                next_step="make the optimizer after the model was wrapped and moved",
            )
        elif count > 1:
            yield Problem(
                code="held-twice", message=f"the optimizer holds a parameter {count} times", place=place
            )
    for name, parameter in case.parameters.items():
        wanted = case.recipe.trained(name)
        if wanted is None:
            wanted = parameter.requires_grad
        if wanted and name not in held and parameter.same_as is None:
            yield Problem(
                code="not-held",
                message="the recipe trains a parameter that the optimizer does not hold",
                place=Place(rank=rank, step=step, tensor=name),
                next_step="look for parameters that were exchanged after the optimizer was made",
            )


def _trainable(case: StepCase) -> Iterator[Problem]:
    """What may be trained is what the recipe trains."""
    for name, parameter in case.parameters.items():
        wanted = case.recipe.trained(name)
        if wanted is not None and wanted != parameter.requires_grad and parameter.same_as is None:
            yield Problem(
                code="trained-though-frozen" if parameter.requires_grad else "frozen-though-trained",
                message="a parameter that the recipe freezes takes part in training"
                if parameter.requires_grad
                else "a parameter that the recipe trains is frozen",
                place=Place(tensor=name),
                expected=f"requires_grad {wanted}",
                found=f"requires_grad {parameter.requires_grad}",
                next_step="compare the frozen modules with the recipe",
            )


def _moved(case: StepCase) -> Iterator[Problem]:
    """From the start to the end of training a frozen parameter keeps its bytes."""
    for rank in case.ranks:
        start, end = case.at_start(rank), case.at_end(rank)
        for name in sorted(set(start) & set(end)):
            before, after = start[name].sha256, end[name].sha256
            if before is None or after is None or case.recipe.trained(name) is not False or before == after:
                continue
            yield Problem(
                code="frozen-moved",
                message="a parameter that the recipe freezes changed in training",
                place=Place(rank=rank.rank, tensor=name),
                expected=f"sha256 {before[:12]}",
                found=f"sha256 {after[:12]}",
            )


def _settings(case: StepCase, rank: int, step: int, groups: tuple[Group, ...]) -> Iterator[Problem]:
    recipe = case.recipe
    for number, group in enumerate(groups):
        place = Place(rank=rank, step=step)
        for name, wanted in _hyperparameters(case, group):
            found = group.values.get(name)
            if found is not None and found != wanted:
                yield Problem(
                    code="hyperparameter-differs",
                    message=f"group {number} is stepped with another {name} than the recipe's",
                    place=place,
                    expected=str(wanted),
                    found=str(found)[:80],
                    next_step="compare what the optimizer was made with, and later changes, with the recipe",
                )
        decay = group.number("weight_decay") or 0.0
        wrong = [name for name in group.params if not _decays_right(case, name, decay)]
        if wrong:
            wants = recipe.weight_decay if decay != recipe.weight_decay else 0.0
            yield Problem(
                code="decay-differs",
                message=f"{len(wrong)} parameters of group {number} decay otherwise than declared",
                place=Place(rank=rank, step=step, tensor=wrong[0]),
                expected=f"weight decay {wants:g}",
                found=f"{decay:g}",
                citation=str(recipe.decay[0].citation) if recipe.decay else None,
                next_step="compare the parameter groups with the recipe",
            )


def _hyperparameters(case: StepCase, group: Group) -> Iterator[tuple[str, object]]:
    recipe = case.recipe
    if recipe.optimizer in ("adamw", "adam"):
        betas = group.values.get("betas")
        if betas is not None:
            yield "betas", type(betas)(recipe.betas) if isinstance(betas, list | tuple) else recipe.betas
        yield "eps", 1e-8 if recipe.epsilon is None else recipe.epsilon
        yield "amsgrad", False
    if recipe.optimizer == "sgd":
        yield "momentum", recipe.momentum or 0.0
        yield "nesterov", bool(recipe.nesterov)
        yield "dampening", 0
    if recipe.optimizer == "muon":
        yield "momentum", 0.95 if recipe.momentum is None else recipe.momentum
    yield "maximize", False


def _decays_right(case: StepCase, name: str, decay: float) -> bool:
    wanted = case.recipe.weight_decay
    name = case.model_name(name)
    module = case.parameters[name].module if name in case.parameters else None
    rule = case.recipe.decays(name, module)
    return decay in (wanted, 0.0) if rule is None else decay == (wanted if rule else 0.0)


def weight_decay_of(case: StepCase, name: str, groups: tuple[Group, ...]) -> float:
    """The decay that the recipe gives a parameter; its group's own where the recipe leaves it open."""
    about = case.parameters.get(case.model_name(name))
    rule = case.recipe.decays(case.model_name(name), about.module if about else None)
    if rule is not None:
        return case.recipe.weight_decay if rule else 0.0
    held = next((group for group in groups if name in group.params), None)
    used = held.number("weight_decay") if held else None
    return used if used in (0.0, case.recipe.weight_decay) and used is not None else case.recipe.weight_decay


def adapters_part(case: StepCase) -> Part:
    """The output of every adapter enters its layer's output with the recipe's scaling s of W + s BA."""
    lora = case.recipe.lora
    if lora is None:
        return Part(
            name="adapters", outcome=Outcome.PASS, applicable=False, reason="the recipe trains no adapter"
        )
    problems: list[Problem] = []
    seen: set[str] = set()
    layers: set[str] = set()
    for step in case.full_steps:
        for line in case.lines(step):
            for batch in line.micro_batches:
                for module, adapter in (batch.adapters or {}).items():
                    layers.add(module)
                    if adapter is None or adapter.scaling is None:
                        continue
                    seen.add(module)
                    wanted = lora.scaling(module)
                    off = not abs(adapter.scaling - wanted) <= ADAPTER_SCALING * wanted
                    if off and not any(problem.place.tensor == module for problem in problems):
                        problems.append(_scaling(module, step, wanted, adapter.scaling))
    if layers - seen:
        problems.append(_unseen(layers, seen))
    coverage = Coverage(judged=len(seen), total=len(layers), unit="adapted layers")
    return part_of("adapters", problems, coverage=coverage)


def _unseen(layers: set[str], seen: set[str]) -> Problem:
    return Problem(
        code="scaling-unknown",
        outcome=Outcome.NOT_EVALUATED,
        message=f"the scaling of {len(layers - seen)} of {len(layers)} adapted layers was not measured: no"
        " gradient passed through them, or their adapter is no layer of its own (experts, target_parameters)",
        place=Place(tensor=min(layers - seen)),
        next_step="look for a detached graph; of adapted experts compare alpha and rank yourself",
    )


def _scaling(module: str, step: int, wanted: float, found: float) -> Problem:
    return Problem(
        code="scaling-differs",
        message="an adapter enters its layer with another scaling than the recipe's alpha and rank give",
        place=Place(step=step, tensor=module),
        expected=f"{wanted:.6g}",
        found=f"{found:.6g}",
        next_step="compare alpha, rank and their patterns with the framework's version",
    )
