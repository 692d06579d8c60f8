"""The faults that the optimizer-step check injects into a copy of its smallest slice."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from checks.check import InjectedFault, NotApplicable
from checks.optimization.case import Shard, StepCase, gradient_shards, shards
from checks.optimization.gradient_parts import StepTokens
from checks.optimization.tokens import TokenBatch, token_batches
from checks.optimization.updating import ParameterStep, Unjudgeable, parameter_step
from checks.optimization.witnesses import contribution, measured
from checks.records.steps import Inactive, StepLine
from checks.rules import NORM_ROUNDING

_SMALL = 2**16


def smallest_slice(case: StepCase) -> StepCase:
    """One full step with a learning rate; the witnesses' weights and the smallest parameter of each kind."""
    if not case.full_steps or case.rank_problems:
        raise NotApplicable("no step was recorded in full on every rank")
    step = max(case.full_steps, key=lambda each: (_moves(case, each), _unevenness(case, each)))
    names = _few(case, step)
    if not names:
        raise NotApplicable("the optimizer held no parameter in the recorded step")
    ranks = tuple(
        replace(
            rank,
            lines=tuple(line for line in rank.lines if line.step == step),
            full={step: rank.full[step]},
            logged={each: values for each, values in rank.logged.items() if each in (step - 1, step)},
        )
        for rank in case.ranks
    )
    return replace(case, ranks=ranks, only=frozenset(names), known_masters=case.masters)


def _moves(case: StepCase, step: int) -> bool:
    return case.rate(step) > 0


def _unevenness(case: StepCase, step: int) -> float:
    """How unlike the token counts of ranks, and of micro-batches, are: the less unlike of the two."""
    ranks = [line.supervised or 0 for line in case.lines(step)]
    batches = [batch.supervised or 0 for line in case.lines(step) for batch in line.micro_batches]
    return min(_spread(batches), _spread(ranks)) if len(ranks) > 1 else _spread(batches)


def _spread(counts: list[int]) -> float:
    most = max(counts, default=0)
    return (most - min(counts)) / most if most else 0.0


def _few(case: StepCase, step: int) -> set[str]:
    """The witnesses' weights, and the smallest parameter of each number of dimensions, decayed or not."""
    record = case.tensors(step)[0][1]
    sizes = {name: record.tensors[f"before.{name}"].size for name in record.parameters()}
    chosen = {f"{module}.weight" for module in record.witnesses()}
    chosen |= {copy for copy, name in case.masters.items() if name in chosen}
    kinds: dict[tuple[int, bool | None], str] = {}
    for name in sorted(sizes, key=lambda each: (sizes[each] < 16, sizes[each])):
        about = case.parameters.get(case.model_name(name))
        decays = case.recipe.decays(case.model_name(name), about.module if about else None)
        kind = (len(record.tensors[f"before.{name}"].shape), decays)
        if f"grad.used.{name}" in record.tensors:
            kinds.setdefault(kind, name)
    return chosen | set(kinds.values())


def _step(case: StepCase) -> int:
    return case.full_steps[0]


def _weighted(case: StepCase, factor: Callable[[TokenBatch, list[TokenBatch]], float]) -> StepCase:
    """The case with each micro-batch's token weights times a factor."""
    step = _step(case)
    batches = list(token_batches(case, step))
    if not batches or any(batch.weights is None for batch in batches):
        raise NotApplicable("the records hold no token weights")
    factors = {(batch.rank, batch.number): factor(batch, batches) for batch in batches if batch.count}
    values = list(factors.values())
    if not values or max(abs(value - 1) for value in values) < 1e-9:
        raise NotApplicable(
            "the fault is identical by construction: token counts or accumulation do not vary"
        )
    changes: dict[int, dict[str, np.ndarray]] = {}
    tensors = dict(case.tensors(step))
    for (rank, number), value in factors.items():
        name = f"micro.{number}.token_weight"
        changes.setdefault(rank, {})[name] = tensors[rank].array(name) * value
    return case.with_tensors(step, changes)


def _one_token_twice(case: StepCase) -> StepCase:
    """One supervised token of a micro-batch weighs twice as much as the others."""
    step = _step(case)
    tensors = dict(case.tensors(step))
    for batch in token_batches(case, step):
        if batch.weights is None or len(batch.told_errors) < 3:
            continue
        name = f"micro.{batch.number}.token_weight"
        values = tensors[batch.rank].array(name).copy()
        row, token = batch.places[int(batch.weight_errors.argmin())]
        values[row, token] *= 2
        return case.with_tensors(step, {batch.rank: {name: values}})
    raise NotApplicable("no micro-batch has three tokens that tell their weight")


def _mean_of_micro_batch_means(case: StepCase) -> StepCase:
    def factor(batch: TokenBatch, batches: list[TokenBatch]) -> float:
        filled = sum(1 for each in batches if each.count)
        return sum(each.count for each in batches) / (filled * batch.count)

    return _weighted(case, factor)


def _mean_per_rank(case: StepCase) -> StepCase:
    def factor(batch: TokenBatch, batches: list[TokenBatch]) -> float:
        ranks = len({each.rank for each in batches if each.count})
        own = sum(each.count for each in batches if each.rank == batch.rank)
        return sum(each.count for each in batches) / (ranks * own)

    return _weighted(case, factor)


def _times_accumulation(case: StepCase) -> StepCase:
    step = _step(case)
    tokens = StepTokens(step, tuple(token_batches(case, step)), tuple(measured(case, step)))
    if tokens.factor(case.world_size) is None:
        raise NotApplicable("no linear layer was recorded with its inputs, so the scale cannot be told")
    count = max(len(line.micro_batches) for line in case.lines(step))
    return _weighted(case, lambda batch, batches: float(count))


def _changed_lines(case: StepCase, change: Callable[[StepLine], StepLine]) -> StepCase:
    step = _step(case)
    lines = {rank.rank: change(line) for rank in case.ranks if (line := rank.line(step)) is not None}
    return case.with_lines(step, lines)


def _decay_on_norms(case: StepCase) -> StepCase:
    recipe = case.recipe
    if not recipe.weight_decay:
        raise NotApplicable("the recipe decays nothing")
    named = {**{name: name for name in case.parameters}, **case.masters}
    undecayed = {
        held for held, name in named.items() if recipe.decays(name, case.parameters[name].module) is False
    }

    def change(line: StepLine) -> StepLine:
        groups = tuple(
            group.model_copy(update={"weight_decay": recipe.weight_decay})
            if undecayed & set(group.params)
            else group
            for group in line.groups
        )
        return line.model_copy(update={"groups": groups})

    if not any(undecayed & set(group.params) for line in case.lines(_step(case)) for group in line.groups):
        raise NotApplicable("no parameter of the optimizer is declared to be left out of decay")
    return _changed_lines(case, change)


def _half_rate(case: StepCase) -> StepCase:
    if not case.rate(_step(case)):
        raise NotApplicable("the learning rate of the recorded step is 0")

    def change(line: StepLine) -> StepLine:
        groups = tuple(
            group.model_copy(update={"lr": (group.number("lr") or 0.0) / 2}) for group in line.groups
        )
        return line.model_copy(update={"groups": groups})

    return _changed_lines(case, change)


def _judgeable(case: StepCase) -> Iterator[ParameterStep]:
    """The parameters of the slice with a gradient whose step can be recomputed."""
    step = _step(case)
    for shard in shards(case, step):
        line = next(each for each in case.ranks if each.rank == shard.rank).line(step)
        try:
            one = parameter_step(case, step, shard, line.groups if line else ())
        except Unjudgeable:
            continue
        if one is not None:
            yield one


def _visible(case: StepCase) -> ParameterStep:
    """A parameter at which half the update would be seen."""
    for one in _judgeable(case):
        shard = one.shard
        if not np.any(one.reference.move.value) or one.before.shape != one.after.shape:
            continue
        if shard.first.tensors[f"after.{shard.parameter}"].size != one.after.size:
            continue
        if one.reference.direction_error is not None or one.shows_half.any():
            return one
    raise NotApplicable("at no weight of the slice does the update reach half a unit in the last place")


def _with_after(case: StepCase, one: ParameterStep, values: np.ndarray) -> StepCase:
    name = f"after.{one.shard.parameter}"
    return case.with_tensors(one.step, {rank: {name: values} for rank, _ in one.shard.holders})


def _skipped(case: StepCase) -> StepCase:
    one = _visible(case)
    return _with_after(case, one, one.before)


def _half_update(case: StepCase) -> StepCase:
    one = _visible(case)
    return _with_after(case, one, one.reference.decayed - one.reference.move.value / 2)


def _clipped_by(case: StepCase, local: bool) -> StepCase:
    """Gradients scaled by each rank's own norm, or not at all."""
    step, largest = _step(case), case.recipe.max_grad_norm
    squares = {rank.rank: _squares(rank.line(step)) for rank in case.ranks}
    whole = _whole_square(case, step)
    if not largest:
        raise NotApplicable("the recipe clips nothing")
    if whole <= 0:
        raise NotApplicable(f"every gradient of step {step} is zero, so there is nothing to clip")
    right = min(1.0, largest / math.sqrt(whole))
    changes: dict[int, dict[str, np.ndarray]] = {}
    differs = False
    for shard in shards(case, step):
        names = [f"grad.raw.{case.model_name(shard.parameter)}", f"grad.used.{shard.parameter}"]
        if any(name not in shard.first.tensors for name in names):
            continue
        own = squares[shard.rank]
        factor = min(1.0, largest / math.sqrt(own)) if local and own > 0 else 1.0
        raw = shard.first.array(names[0])
        apart = abs(factor / right - 1) > 8 * NORM_ROUNDING + 0.05 and bool(raw.any())
        differs |= apart and (factor < 1 or not local)  # a factor of 1 is no clipping: another fault's
        for rank, _ in shard.holders:
            changes.setdefault(rank, {})[names[1]] = raw * factor
    if not differs:
        raise NotApplicable("the local norm clips as the global one, or nothing is clipped")
    return case.with_tensors(step, changes)


def _squares(line: StepLine | None) -> float:
    return sum(line.gradient_squares_raw.values()) if line and line.gradient_squares_raw else 0.0


def _whole_square(case: StepCase, step: int) -> float:
    found: dict[tuple[str, tuple[int, ...] | None], float] = {}
    for rank in case.ranks:
        line = rank.line(step)
        for name, value in (line.gradient_squares_raw or {}).items() if line else ():
            placement = rank.full[step].placements.get(name)
            found.setdefault((name, placement.offset if placement else None), value)
    return sum(found.values())


def _by_local_norm(case: StepCase) -> StepCase:
    return _clipped_by(case, local=True)


def _unclipped(case: StepCase) -> StepCase:
    return _clipped_by(case, local=False)


def _witness(case: StepCase) -> tuple[Shard, str, float]:
    """The part of a witness' gradient that the judge looks at, its module and c."""
    step = _step(case)
    for one in measured(case, step):
        name = f"{one.module}.weight"
        found = [shard for shard in gradient_shards(case, step) if case.model_name(shard.parameter) == name]
        found.sort(key=lambda shard: (shard.parameter != name, shard.rank != one.rank))
        if found:
            return found[0], one.module, one.factor
    raise NotApplicable("no linear layer was recorded with its inputs and a gradient above 0")


def _contribution_lost(case: StepCase) -> StepCase:
    step = _step(case)
    shard, module, factor = _witness(case)
    name = f"grad.raw.{shard.parameter}"
    for _, record in case.tensors(step):
        part = contribution(record, module, shard)
        if part is not None and np.any(part):
            values = shard.first.array(name)
            left = values - factor * part.reshape(values.shape)
            return case.with_tensors(step, {rank: {name: left} for rank, _ in shard.holders})
    raise NotApplicable("no micro-batch of the slice adds to the gradient of the recorded linear layer")


def _unsynchronised(case: StepCase) -> StepCase:
    step = _step(case)
    for shard in gradient_shards(case, step):
        name = f"grad.raw.{shard.parameter}"
        if len(shard.holders) > 1 and name in shard.first.tensors and shard.first.array(name).any():
            rank, record = shard.holders[-1]
            return case.with_tensors(step, {rank: {name: record.array(name) * 2}})
    raise NotApplicable("no parameter of the slice is held by two ranks")


def _moment_kept(case: StepCase) -> StepCase:
    step = _step(case)
    zero = False
    for one in _judgeable(case):
        shard = one.shard
        for key in (key for key in one.reference.state if key in one.state_after):
            name = f"state.after.{shard.parameter}.{key}"
            tensor = shard.first.tensors[name]
            values = shard.first.array(name)
            is_moment = tensor.dtype in ("F32", "BF16", "F16", "F64")
            zero |= is_moment and not values.any()
            if is_moment and values.any() and np.isfinite(values).all():
                return case.with_tensors(step, {rank: {name: values * 2} for rank, _ in shard.holders})
    why = f"every moment is zero after step {step}" if zero else "the optimizer keeps no state"
    raise NotApplicable(why)


def _adapter_unscaled(case: StepCase) -> StepCase:
    if case.recipe.lora is None:
        raise NotApplicable("the recipe trains no adapter")
    seen = False

    def change(line: StepLine) -> StepLine:
        nonlocal seen
        batches = []
        for batch in line.micro_batches:
            adapters = {
                name: adapter.model_copy(update={"scaling": adapter.scaling / 2 if adapter.scaling else None})
                for name, adapter in (batch.adapters or {}).items()
                if adapter is not None
            }
            seen |= any(adapter.scaling for adapter in adapters.values())
            batches.append(batch.model_copy(update={"adapters": adapters}))
        return line.model_copy(update={"micro_batches": tuple(batches)})

    changed = _changed_lines(case, change)
    if not seen:
        raise NotApplicable("no adapter's scaling was recorded")
    return changed


def _in_eval_mode(case: StepCase) -> StepCase:
    if not any(batch.modes for line in case.lines(_step(case)) for batch in line.micro_batches):
        raise NotApplicable("the records do not tell which modules were in training mode")
    one = Inactive(module="dropout", setting="p", value=0.1, trained=True)

    def change(line: StepLine) -> StepLine:
        batches = tuple(
            batch.model_copy(update={"modes": batch.modes.model_copy(update={"inactive": (one,)})})
            if batch.modes
            else batch
            for batch in line.micro_batches
        )
        return line.model_copy(update={"micro_batches": batches})

    return _changed_lines(case, change)


FAULTS: tuple[InjectedFault[StepCase], ...] = (
    InjectedFault("mean of micro-batch means", "weights", "token-weights-differ", _mean_of_micro_batch_means),
    InjectedFault("mean per rank", "weights", "token-weights-differ", _mean_per_rank),
    InjectedFault("one token counted twice", "weights", "token-weights-differ", _one_token_twice),
    InjectedFault("loss times accumulation", "weights", "loss-scale-differs", _times_accumulation),
    InjectedFault("a micro-batch lost", "gradient", "contribution-lost", _contribution_lost),
    InjectedFault("a rank not synchronised", "gradient", "replicas-differ", _unsynchronised),
    InjectedFault("an adapter at half its scaling", "adapters", "scaling-differs", _adapter_unscaled),
    InjectedFault("clipped by the local norm", "clip", "clip-differs", _by_local_norm),
    InjectedFault("not clipped", "clip", "not-clipped", _unclipped),
    InjectedFault("half the learning rate in the schedule", "schedule", "learning-rate-differs", _half_rate),
    InjectedFault("a dropout in eval mode", "modes", "left-in-eval-mode", _in_eval_mode),
    InjectedFault("decay on norms", "groups", "decay-differs", _decay_on_norms),
    InjectedFault("a skipped group", "update", "not-updated", _skipped),
    InjectedFault("half the update", "update", "update-differs", _half_update),
    InjectedFault("a doubled moment", "state", "state-differs", _moment_kept),
)
