"""What each parameter is stepped with: ranks and rows, groups, decay, schedule, adapters' scaling."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from plumbline_mcp.findings.recompute.answer import Flaw, unknown
from plumbline_mcp.findings.recompute.reading import number
from plumbline_mcp.findings.recompute.recipe import Recipe
from plumbline_mcp.findings.recompute.step_record import Line, Run
from plumbline_mcp.findings.recompute.tokens import supervised

RATE = 2.0**-22
"""Error of a learning rate relative to the highest: a rate in a float32 tensor is rounded to 2^-24."""
SCALING = 0.02
"""Error of a measured adapter scaling: one multiplication and at most three roundings of 2^-8 units."""


def lost_ranks(run: Run) -> list[Flaw]:
    """Ranks that died (``fail``) or whose recorder did not finish; those told to stop come last."""
    ranks = {rank.number: rank for rank in run.ranks}
    died, stopped, silent = list[Flaw](), list[Flaw](), list[Flaw]()
    for rank in range(run.record.world_size):
        if not run.record.ended_well(rank):
            bystander = run.record.was_stopped(rank)
            code = "rank-stopped" if bystander else "rank-died"
            (stopped if bystander else died).append(Flaw("ranks", code, {"rank": rank}))
        elif rank not in ranks or ranks[rank].failed or not ranks[rank].lines:
            failed = rank in ranks and ranks[rank].failed
            code = "recorder-failed" if failed else "nothing-recorded"
            silent.append(unknown("ranks", code, f"rank {rank} left no whole record of a step", rank=rank))
    return [*died, *silent, *stopped]


def rank_flaws(run: Run, recipe: Recipe) -> Iterator[Flaw]:
    """Every rank made every step on as many rows as the others, and on other ones."""
    for rank in run.ranks:
        missing = [step for step in run.steps if step not in rank.lines]
        if missing:
            yield Flaw("ranks", "step-missing", {"rank": rank.number, "step": missing[0]})
    for step in run.steps:
        rows = dict(_rows(run, step))
        first = rows[min(rows)] if rows else None
        for number_, found in rows.items():
            if found != first:
                yield Flaw("ranks", "rows-differ", {"rank": number_, "step": step}, str(found), str(first))
    if recipe.settings.get("layout") in (None, "ddp", "fsdp2") and run.full_steps:
        yield from _repeated(run)


def _rows(run: Run, step: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """(rank, (micro-batches, rows)) of the ranks that tell."""
    for rank, line in run.lines(step):
        counts = [batch.get("rows") for batch in line["micro_batches"]]
        if all(type(count) is int for count in counts):
            yield rank, (len(counts), sum(counts))


def _repeated(run: Run) -> Iterator[Flaw]:
    seen: dict[tuple[str, ...], int] = {}
    for rank in run.ranks:
        digests = tuple(_row_digests(run, rank.number))
        if digests and seen.setdefault(digests, rank.number) != rank.number:
            yield Flaw("ranks", "rows-repeated", {"rank": rank.number, "step": run.full_steps[0]})


def _row_digests(run: Run, rank: int) -> Iterator[str]:
    for step in run.full_steps:
        full = next(full for number_, full in run.files(step) if number_ == rank)
        names = [n for n in full.file.entries if n.startswith("micro.") and n.endswith(".input_ids")]
        yield from (full.file.digest(name) for name in sorted(names))


def supervision_flaws(run: Run) -> Iterator[Flaw]:
    """Every step's loss covers tokens, as many as its labels say."""
    known = 0
    for step in run.steps:
        batches = [batch for _, line in run.lines(step) for batch in line["micro_batches"]]
        counts = [batch.get("supervised") for batch in batches]
        if not counts or not all(type(count) is int for count in counts):
            continue
        known += 1
        if sum(counts) == 0:
            yield Flaw("supervision", "nothing-supervised", {"step": step}, 0.0)
    if run.steps and not known:
        yield unknown("supervision", "counts-unknown", "no step says how many tokens were supervised")
    for step in run.full_steps:
        for rank, full in run.files(step):
            line = dict(run.lines(step)).get(rank, {"micro_batches": []})
            for batch, told in enumerate(line["micro_batches"]):
                mask = supervised(full, batch)
                said = told.get("supervised")
                if mask is not None and type(said) is int and int(mask.sum()) != said:
                    why = f"micro-batch {batch} says {said} supervised tokens, its labels {int(mask.sum())}"
                    yield unknown("supervision", "counts-differ", why, step=step, rank=rank)


def group_flaws(run: Run, recipe: Recipe) -> Iterator[Flaw]:
    """Every trained parameter is held once, with the recipe's settings; frozen ones stay as they are."""
    for rank in run.ranks:
        whole = ((s, line) for s, line in rank.lines.items() if s not in rank.partly)
        first = next(((s, line) for s, line in whole if line["groups"]), None)
        if first is not None:
            yield from _membership(run, recipe, rank.number, first[0], first[1]["groups"])
        else:
            yield unknown("groups", "groups-unknown", "a rank recorded no parameter group", rank=rank.number)
    for step in run.full_steps or run.steps[:1]:
        for rank_number, line in run.lines(step):
            for group in line["groups"]:
                yield from _group(run, recipe, {"rank": rank_number, "step": step}, group)
    yield from _frozen(run, recipe)


def _frozen(run: Run, recipe: Recipe) -> Iterator[Flaw]:
    """What may move is what the recipe trains, and nothing else moves."""
    for name, line in run.parameters.items():
        wanted = recipe.trains(name)
        trains = bool(line.get("requires_grad"))
        if wanted is not None and wanted != trains and line.get("same_as") is None:
            code = "trained-though-frozen" if trains else "frozen-though-trained"
            yield Flaw("groups", code, {"tensor": name}, str(trains), str(wanted))
    for rank in run.ranks:
        start, end = rank.models.get("start", {}), rank.models.get("end", {})
        for name in sorted(set(start) & set(end)):
            before, after = start[name].get("sha256"), end[name].get("sha256")
            if recipe.trains(name) is False and before and after and before != after:
                yield Flaw("groups", "frozen-moved", {"rank": rank.number, "tensor": name}, after, before)


def _membership(run: Run, recipe: Recipe, rank: int, step: int, groups: list[Line]) -> Iterator[Flaw]:
    held = Counter(run.model_name(name) for group in groups for name in group["params"])
    for name, count in held.items():
        where = {"rank": rank, "step": step, "tensor": name}
        if name.startswith("unowned."):
            yield Flaw("groups", "stale-parameter", where)
        elif count > 1:
            yield Flaw("groups", "held-twice", where, count, 1.0)
    for name, line in run.parameters.items():
        wanted = recipe.trains(name)
        wanted = bool(line.get("requires_grad")) if wanted is None else wanted
        if wanted and name not in held and line.get("same_as") is None:
            yield Flaw("groups", "not-held", {"rank": rank, "step": step, "tensor": name}, 0.0, 1.0)


def _group(run: Run, recipe: Recipe, where: dict[str, int], group: Line) -> Iterator[Flaw]:
    for name, wanted in _settings(recipe).items():
        found = group.get(name)
        found = tuple(found) if isinstance(found, list) else found
        if found is not None and found != wanted:
            yield Flaw("groups", "hyperparameter-differs", where, f"{name} {found}"[:200], str(wanted))
    decay = number(group.get("weight_decay")) or 0.0
    wrong = [name for name in group["params"] if decay not in _decays(run, recipe, name)]
    if wrong:
        wanted_decay = recipe.number("weight_decay")
        bound = wanted_decay if decay != wanted_decay else 0.0
        yield Flaw("groups", "decay-differs", {**where, "tensor": wrong[0]}, decay, bound)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Hyperparameters of a group by name, as torch names them."""
    adam: dict[str, Any] = {"betas": recipe.betas, "eps": recipe.epsilon, "amsgrad": False}
    sgd: dict[str, Any] = {"momentum": recipe.number("momentum"), "dampening": 0}
    sgd["nesterov"] = recipe.flag("nesterov")
    muon: dict[str, Any] = {"momentum": recipe.number("momentum", 0.95)}
    known = {"adamw": adam, "adam": adam, "sgd": sgd, "muon": muon}
    return {**known.get(recipe.optimizer, {}), "maximize": False}


def _decays(run: Run, recipe: Recipe, name: str) -> tuple[float, ...]:
    """The decays that a parameter may have: one, or two where nothing declares which."""
    model = run.model_name(name)
    rule = recipe.decays(model, run.parameters.get(model, {}).get("module"))
    wanted = recipe.number("weight_decay")
    if rule is None:
        return (wanted, 0.0)
    return (wanted,) if rule else (0.0,)


def decay_of(run: Run, recipe: Recipe, name: str, groups: list[Line]) -> float:
    """The decay that a parameter is stepped with; its group's own where the recipe leaves it open."""
    allowed = _decays(run, recipe, name)
    held = next((number(group.get("weight_decay")) for group in groups if name in group["params"]), None)
    return held if len(allowed) > 1 and held in allowed and held is not None else allowed[0]


def rates_of(run: Run, recipe: Recipe) -> dict[int, float]:
    """The learning rate of each step.

    Where a gradient scaler leaves steps out, a schedule goes on or stands still; a recipe does not say which,
    so whichever the recorded rates follow is taken for the whole run.
    """
    total = recipe.total(max(run.steps, default=0))
    skipped = frozenset.intersection(*(rank.skipped for rank in run.ranks)) if run.ranks else frozenset()
    before = {step: sum(each < step for each in skipped) for step in run.steps}
    ways = [{step: recipe.rate(step - behind * n, total) for step, n in before.items()} for behind in (0, 1)]
    if not skipped:
        return ways[0]
    told = [(step, number(group.get("lr"))) for step in run.steps for _, line in run.lines(step)
            for group in line["groups"]]  # fmt: skip
    off = [sum(abs(rate - way[step]) for step, rate in told if rate is not None) for way in ways]
    return ways[1] if off[1] < off[0] else ways[0]


def schedule_flaws(run: Run, recipe: Recipe) -> Iterator[Flaw]:
    """Every group of every step has the schedule's learning rate."""
    wanted_rates, peak = rates_of(run, recipe), recipe.number("learning_rate")
    rates = 0
    for step in run.steps:
        wanted = wanted_rates[step]
        for rank, line in run.lines(step):
            for group in line["groups"]:
                rates += 1
                rate = number(group.get("lr"))
                if rate is None or not abs(rate - wanted) <= RATE * peak:
                    where = {"step": step, "rank": rank}
                    yield Flaw("schedule", "learning-rate-differs", where, rate, wanted)
    if not rates:
        yield unknown("schedule", "rates-unknown", "no step tells a learning rate")


def mode_flaws(run: Run) -> Iterator[Flaw]:
    """What is trained is in training mode wherever its eval mode computes something else."""
    left, blank = set[str](), list[int]()
    for step in run.steps:
        lines = [
            (rank, line, [b.get("modes") for b in line["micro_batches"]]) for rank, line in run.lines(step)
        ]
        if not all(any(isinstance(modes, dict) for modes in told) for _, _, told in lines):
            blank.append(step)
        for rank, _, told in lines:
            for one in (
                each for modes in told if isinstance(modes, dict) for each in modes.get("inactive") or []
            ):
                value, module = number(one.get("value")), str(one.get("module"))
                if one.get("trained") and value is not None and value > 0 and module not in left:
                    left.add(module)
                    where = {"rank": rank, "step": step, "tensor": module}
                    yield Flaw("modes", "left-in-eval-mode", where, value, 0.0)
    if blank:
        why = f"of {len(blank)} steps it was not recorded which modules were in training mode"
        yield unknown("modes", "modes-unknown", why, step=blank[0])


def adapter_flaws(run: Run, recipe: Recipe) -> Iterator[Flaw]:
    """Every adapter enters its layer with the recipe's scaling."""
    if recipe.lora is None:
        return
    layers, seen, wrong = set[str](), set[str](), set[str]()
    for step in run.full_steps:
        for _, line in run.lines(step):
            for batch in line["micro_batches"]:
                for module, told in (batch.get("adapters") or {}).items():
                    layers.add(module)
                    found = number(told.get("scaling")) if isinstance(told, dict) else None
                    wanted = recipe.adapter_scaling(module)
                    if found is None or wanted is None:
                        continue
                    seen.add(module)
                    if not abs(found - wanted) <= SCALING * wanted and module not in wrong:
                        wrong.add(module)
                        where = {"step": step, "tensor": module}
                        yield Flaw("adapters", "scaling-differs", where, found, wanted)
    if layers - seen:
        why = f"the scaling of {len(layers - seen)} adapted layers was not measured"
        yield unknown("adapters", "scaling-unknown", why, tensor=min(layers - seen))
    elif not layers:
        yield unknown("adapters", "scaling-unknown", "no adapted layer was recorded")
