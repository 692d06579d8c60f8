"""Parts ``update``, ``state`` and ``lost_updates``: every parameter's recorded step beside the recipe's."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from plumbline_mcp.findings.recompute.answer import Answer, Flaw, unknown
from plumbline_mcp.findings.recompute.certain import SLACK, running_error
from plumbline_mcp.findings.recompute.decoding import DTYPES, Floats, round_to, spacing
from plumbline_mcp.findings.recompute.gradients import replica_flaws
from plumbline_mcp.findings.recompute.held import decay_of, rates_of
from plumbline_mcp.findings.recompute.intervals import SUMMATION
from plumbline_mcp.findings.recompute.reading import Cannot
from plumbline_mcp.findings.recompute.recipe import Recipe
from plumbline_mcp.findings.recompute.step_record import Full, Run
from plumbline_mcp.findings.recompute.updates import TINY, Result, Start, stepped, takes_whole

LOST_SHARE = 0.01
"""Weights that float32 would move and that stay: one percent leaves a tenth of Adam's update norm out."""
MUON_BESIDE = 2.0
"""Floors that an update may lie beside the exact one: two independent roundings are sqrt(2) apart."""
HALF = 0.5
"""A bound on an update's length from which half an update could pass."""

Holders = list[tuple[int, Full]]


@dataclass
class _Seen:
    """What was met over all parameters: counts of elements, and parameters with and without a gradient."""

    moving: int = 0
    visible: int = 0
    unsure: bool = False
    would_move: int = 0
    stuck: int = 0
    stuck_in: dict[str, float] = field(default_factory=dict)
    judged: int = 0
    with_gradient: set[str] = field(default_factory=set)
    without: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Step:
    """One parameter's step: ``exact`` the unrounded value after it, in [``low``, ``high``] when right."""

    name: str
    where: dict[str, int | str]
    dtype: str
    before: Floats
    after: Floats
    low: Floats
    high: Floats
    exact: Floats
    result: Result
    point: Result
    rounding: Floats | None
    compensated: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """bool: elements outside of the bounds."""
        return np.asarray(~((self.after >= self.low) & (self.after <= self.high)))


def moved(answer: Answer, run: Run, recipe: Recipe) -> int:
    """Judge every parameter of every full step; the number that was judged."""
    seen = _Seen()
    answer.add(_unrecorded(run))
    answer.add(_between(run))
    for step in run.full_steps:
        for name, holders in run.pieces(step):
            _judge(answer, run, recipe, step, name, holders, seen)
    answer.add(_over_all(answer, run, recipe, seen))
    return seen.judged


def _unrecorded(run: Run) -> Iterator[Flaw]:
    for step in run.full_steps:
        for rank, full in run.files(step):
            groups = dict(run.lines(step)).get(rank, {"groups": []})["groups"]
            missing = [n for group in groups for n in group["params"] if not full.has(f"before.{n}")]
            if missing:
                why = f"{len(missing)} parameters that the optimizer held were not recorded"
                yield unknown("update", "update-unknown", why, step=step, rank=rank, tensor=missing[0])


def _between(run: Run) -> Iterator[Flaw]:
    """What one recorded step leaves is what the next one starts from."""
    for rank in run.ranks:
        for step in run.full_steps:
            if step - 1 in rank.full and step - 1 in rank.lines:
                yield from _carried(rank.number, step, rank.full[step - 1], rank.full[step])
    for rank in run.ranks:
        for step in run.full_steps:
            if min(rank.lines.keys() - rank.partly, default=step) < step:
                yield from _gone(rank.number, step, rank.full[step])


def _carried(rank: int, step: int, old: Full, new: Full) -> Iterator[Flaw]:
    for name in new.stepped:
        where = {"step": step, "rank": rank, "tensor": name}
        if _differs(old, f"after.{name}", new, f"before.{name}"):
            yield Flaw("update", "moved-between-steps", where)
        for key in old.state("after", name):
            if _differs(old, f"state.after.{name}.{key}", new, f"state.before.{name}.{key}"):
                yield Flaw("state", "state-lost", {**where, "field": key})


def _differs(old: Full, one: str, new: Full, other: str) -> bool:
    if not old.has(one) or not new.has(other) or old.strides.get(one) != new.strides.get(other):
        return False
    return old.file.entries[one][:2] != new.file.entries[other][:2] or old.file.digest(
        one
    ) != new.file.digest(other)


def _gone(rank: int, step: int, full: Full) -> Iterator[Flaw]:
    """A later step that begins without the state that it leaves, of every parameter."""
    keeps = [n for n in full.stepped if full.has(f"grad.used.{n}") and full.state("after", n)]
    if keeps and not any(full.state("before", name) for name in keeps):
        where = {"step": step, "rank": rank, "tensor": keeps[0], "field": full.state("after", keeps[0])[0]}
        yield Flaw("state", "state-lost", where)


def _judge(
    answer: Answer, run: Run, recipe: Recipe, step: int, name: str, holders: Holders, seen: _Seen
) -> None:
    rank, full = holders[0]
    where: dict[str, int | str] = {"step": step, "rank": rank, "tensor": name}
    try:
        one = _one(run, recipe, step, name, holders)
    except Cannot as reason:
        answer.add([unknown("update", "update-unknown", f"{name}: {reason}"[:300], **where)])
        return
    seen.judged += 1
    answer.add(replica_flaws("update", step, name, holders, [f"after.{name}"]))
    keys = [f"state.after.{name}.{key}" for key in full.state("after", name)]
    answer.add(replica_flaws("state", step, name, holders, keys))
    if one is None:
        seen.without.add(name)
        still = all(full.has(f"{w}.{name}") for w in ("before", "after"))
        if still and full.file.digest(f"before.{name}") != full.file.digest(f"after.{name}"):
            answer.add([Flaw("update", "moved-without-gradient", where)])
        return
    seen.with_gradient.add(name)
    answer.add(_whole_move(one, seen) if one.result.floor is not None else _elements(recipe, one, seen))
    answer.add(_state_flaws(run, recipe, step, holders, one))


def _one(run: Run, recipe: Recipe, step: int, name: str, holders: Holders) -> _Step | None:
    """The step recomputed, None without a gradient. Raises `Cannot`."""
    rank, full = holders[0]
    if not full.has(f"grad.used.{name}"):
        if full.has(f"grad.raw.{name}"):
            raise Cannot("the gradient that the optimizer saw was not recorded")
        return None
    if not full.has(f"after.{name}"):
        raise Cannot("its value after the step was not recorded")
    together = takes_whole(recipe)
    if together and f"grad.used.{name}" in full.strides:
        raise Cannot("its update needs the whole tensor, and a sample was recorded")
    before, gradient, after = (
        _array(run, step, name, full, f"{kind}.{name}", together) for kind in ("before", "grad.used", "after")
    )
    if not np.isfinite(before).all() or not np.isfinite(gradient).all():
        raise Cannot("it or its gradient is not finite")
    start = Start(
        before, gradient, _state(run, step, name, full, together), _number(full, name),
        rates_of(run, recipe)[step],
        decay_of(run, recipe, name, dict(run.lines(step)).get(rank, {"groups": []})["groups"]),
        full.file.dtype(f"before.{name}"),
    )  # fmt: skip
    result, point = stepped(recipe, start), stepped(recipe, replace(start, exact=True))
    exact = point.base - point.move.middle
    low, high = _bounds(recipe, start, result, exact)
    where: dict[str, int | str] = {"step": step, "rank": rank, "tensor": name}
    held = np.zeros(after.shape, bool)
    if recipe.flag("kahan"):
        held = _compensated(full, name, start, (after, exact), result)
    rounding = running_error(recipe, start)
    return _Step(name, where, start.dtype, before, after, low, high, exact, result, point, rounding, held)


def _compensated(
    full: Full, name: str, start: Start, step: tuple[Floats, Floats], result: Result
) -> np.ndarray:
    """bool: elements of whose update a state that the optimizer does not define keeps the rest (Kahan 1965).

    ``step``: the value after it, recorded and unrounded. The rest may be kept with either sign. A rest is no
    more than one place of the larger weight, as rounding takes at most that: what is larger is added by no
    step.
    """
    after, exact = step
    held = np.zeros(after.shape, bool)
    place = np.fmax(spacing(start.before, start.dtype), spacing(after, start.dtype))
    for key in full.state("after", name):
        tensors = [f"state.{when}.{name}.{key}" for when in ("after", "before")]
        if key in result.state or full.file.shape(tensors[0]) != after.shape:
            continue
        kept = full.array(tensors[0])
        was = full.array(tensors[1]) if full.has(tensors[1]) else np.zeros_like(kept)
        unit = max(DTYPES[full.file.dtype(tensors[0])].unit, DTYPES[start.dtype].unit)
        room = result.move.radius + 4 * unit * (np.abs(result.move.middle) + np.abs(kept) + np.abs(was))
        for change in (kept - was, was - kept):
            held |= (np.abs(after + change - exact) <= room) & ~(np.abs(kept) > place)
    return held


def _array(run: Run, step: int, name: str, full: Full, tensor: str, together: bool) -> Floats:
    if not (together and full.offset(name) is not None):
        return full.array(tensor)
    found = run.assembled(step, name, tensor)
    if found is None:
        raise Cannot("its parts do not make up the whole that its update needs")
    return found


def _state(run: Run, step: int, name: str, full: Full, together: bool) -> dict[str, Floats]:
    """State before the step; numbers beside tensors (a step count) are left out."""
    found = {}
    for key in full.state("before", name):
        tensor = f"state.before.{name}.{key}"
        shape = full.file.shape(tensor)
        if together and full.offset(name) is not None and shape:
            if key != "momentum_buffer":
                raise Cannot("the parts of its optimizer state do not make up the whole")
            found[key] = _array(run, step, name, full, tensor, True)
        elif shape or not full.file.shape(f"before.{name}"):
            found[key] = full.array(tensor)
    return found


def _number(full: Full, name: str) -> int:
    """Which step it is by the optimizer's own count, else the first."""
    tensor = f"state.before.{name}.step"
    if not full.has(tensor):
        return 1
    count = full.array(tensor).reshape(-1)
    if count.size != 1 or not 0 <= count[0] < 2**53 or count[0] != int(count[0]):
        raise Cannot(f"its step count is {count[:3].tolist()}")
    return int(count[0]) + 1


def _bounds(recipe: Recipe, start: Start, result: Result, exact: Floats) -> tuple[Floats, Floats]:
    """The numbers of the parameter's dtype that the step may give, from every rounding on the way."""
    low = high = result.base
    if result.decayed:
        factor = 2 * (2.0**-24 if DTYPES[start.dtype].bits <= 32 else 2.0**-53)
        low, high = low - factor * np.abs(low), high + factor * np.abs(high)
        low = np.minimum(low, round_to(low, result.dtype))
        high = np.maximum(high, round_to(high, result.dtype))
    own = 2.0**-51 * (np.abs(result.base) + np.abs(exact))
    with np.errstate(invalid="ignore"):
        low, high = low - result.move.high - own, high - result.move.low + own
    if recipe.flag("stochastic_rounding") or recipe.flag("kahan"):
        room = spacing(exact, start.dtype)
        if not recipe.flag("stochastic_rounding"):
            # The sum is rounded, a rest of up to one place of the larger weight comes in, rounded as well.
            rest = np.fmax(spacing(start.before, start.dtype), room)
            room = 1.5 * rest + DTYPES[start.dtype].unit * (np.abs(result.move.middle) + rest)
        return exact - room - result.move.radius, exact + room + result.move.radius
    return _narrow(low, result.dtype, start.dtype), _narrow(high, result.dtype, start.dtype)


def _narrow(values: Floats, computed: str, dtype: str) -> Floats:
    """Rounded to the dtype of the computation and then to the parameter's."""
    return round_to(round_to(values, computed), dtype)


def _elements(recipe: Recipe, one: _Step, seen: _Seen) -> Iterator[Flaw]:
    """Element by element; counts what moves, what half an update would show, and what was lost."""
    move = one.point.move.middle
    seen.moving += int(np.count_nonzero(move))
    half = round_to(one.point.base - move / 2, one.dtype)
    seen.visible += int(np.count_nonzero((move != 0) & ((half < one.low) | (half > one.high))))
    wrong = one.wrong
    if not recipe.flag("stochastic_rounding"):
        _count_stuck(one, wrong, seen)
    if wrong.any():
        yield _differs_from(one, wrong)
    elif recipe.flag("stochastic_rounding") and one.after.size:
        yield from _bias(one)


def _count_stuck(one: _Step, wrong: np.ndarray, seen: _Seen) -> None:
    """Weights that float32 would certainly move, and those of them that stayed."""
    radius = one.result.move.radius if one.rounding is None else SLACK * one.rounding
    far, edge = np.abs(one.exact - one.before), 2 * spacing(one.before, "F32")
    sure, still = far - radius > edge, (one.after == one.before) & ~wrong & ~one.compensated
    count, stuck = int(sure.sum()), int((sure & still).sum())
    seen.would_move += count
    seen.stuck += stuck
    seen.unsure |= one.rounding is None and bool(still.any()) and bool(((far > edge) & ~sure).any())
    if stuck and stuck / count > seen.stuck_in.get(one.name, 0.0):
        seen.stuck_in.pop(one.name, None)  # of equal shares the one that was reached first stays first
        seen.stuck_in[one.name] = stuck / count


def _differs_from(one: _Step, wrong: np.ndarray) -> Flaw:
    code = "not-updated" if (one.after == one.before).all() else "update-differs"
    move = one.point.move.middle.reshape(-1)
    size = float(move @ move)
    along = float((one.point.base - one.after).reshape(-1) @ move) / size if size else math.nan
    found = f"{along:.6g} times the update; {int(wrong.sum())} of {wrong.size} elements differ"
    return Flaw("update", code, one.where, found, "1 times the update")


def _bias(one: _Step) -> Iterator[Flaw]:
    """Stochastic rounding is right on average: along the axis, the values and the moves."""
    place = spacing(one.exact, one.dtype)
    off = (one.after - one.exact) / place
    signs = (np.ones_like(off), np.sign(one.exact), np.sign(one.point.move.middle))
    mean = max((float((off * sign).mean()) for sign in signs), key=abs)
    allowed = SUMMATION / 2 / math.sqrt(off.size) + float((one.result.move.radius / place).mean())
    if abs(mean) > allowed:
        yield Flaw("update", "rounding-biased", one.where, mean, allowed)


def _whole_move(one: _Step, seen: _Seen) -> Iterator[Flaw]:
    """A matrix whose update is bounded over the whole: its length along the exact one, and what is beside."""
    move, floor = one.point.move.middle.reshape(-1), one.result.floor or 0.0
    seen.moving += int(np.count_nonzero(move))
    size = float(np.linalg.norm(move))
    still = bool((one.after == one.before).all())
    if size == 0:
        if not still:
            yield Flaw("update", "update-differs", one.where, "moved", "no update")
        return
    taken = (one.point.base - one.after).reshape(-1)
    along = float(taken @ move) / size**2
    beside = float(np.linalg.norm(taken - along * move)) / size
    places = 2 * spacing(np.maximum(np.abs(one.before), np.abs(one.after)), one.dtype)
    rounding = float(np.linalg.norm(places)) / size
    seen.visible += one.before.size if floor + rounding < HALF else 0
    if abs(along - 1) > floor + rounding or beside > MUON_BESIDE * floor + rounding:
        code = "not-updated" if still else "update-differs"
        found = f"{along:.6g} times, {beside:.3g} beside"
        yield Flaw("update", code, one.where, found, f"1 +- {floor + rounding:.2g} times")


def _state_flaws(run: Run, recipe: Recipe, step: int, holders: Holders, one: _Step) -> Iterator[Flaw]:
    """The optimizer's state after the step, element by element, and its step count."""
    full, together = holders[0][1], takes_whole(recipe)
    sharded = full.offset(one.name) is not None
    for key, wanted in one.result.state.items():
        tensor, where = f"state.after.{one.name}.{key}", {**one.where, "field": key}
        if not full.has(tensor) or (together and sharded and key != "momentum_buffer"):
            if not sharded or (key == "momentum_buffer" and not full.has(tensor)):
                yield Flaw("state", "state-missing", where)
            continue
        try:
            found = _array(run, step, one.name, full, tensor, together)
        except Cannot:
            continue
        if found.shape != wanted.low.shape:
            yield Flaw("state", "state-shape-differs", where, str(found.shape), str(wanted.low.shape))
            continue
        room = wanted.widened(DTYPES[full.file.dtype(tensor)].unit, TINY)
        wrong = ~((found >= room.low) & (found <= room.high))
        if wrong.any():
            at = int(np.flatnonzero(wrong.reshape(-1))[0])
            yield Flaw("state", "state-differs", where, float(found.flat[at]), float(wanted.middle.flat[at]))
    count = f"state.after.{one.name}.step"
    if full.has(count):
        after = float(full.array(count).reshape(-1)[0])
        before = f"state.before.{one.name}.step"
        start = float(full.array(before).reshape(-1)[0]) if full.has(before) else 0.0
        if after != start + 1:
            yield Flaw("state", "step-count-differs", {**one.where, "field": "step"}, after, start + 1)


def _over_all(answer: Answer, run: Run, recipe: Recipe, seen: _Seen) -> Iterator[Flaw]:
    """What only all parameters together show: never reached, no visible move, lost updates."""
    never = [n for n in sorted(seen.without - seen.with_gradient) if not n.startswith("unowned.")]
    never = [name for name in never if recipe.trains(name) is not False]
    if never and seen.with_gradient:
        why = f"{len(never)} trained parameters got no gradient in any recorded step"
        yield unknown("update", "never-reached", why, tensor=never[0])
    failed = any(flaw.part == "update" and flaw.level == "fail" for flaw in answer.flaws)
    if seen.judged and not failed and not (seen.moving and seen.visible):
        yield unknown("update", "blind", "no recorded step would show half an update in its dtype")
    if recipe.optimizer == "muon" or recipe.flag("stochastic_rounding"):
        return
    share = seen.stuck / seen.would_move if seen.would_move else 0.0
    name = "weights that float32 arithmetic would move and that did not move"
    if not seen.unsure:
        answer.measured("lost_updates", name, share)
    if not seen.would_move:
        yield unknown("lost_updates", "nothing-moves", "no recorded weight would certainly move")
    elif share > LOST_SHARE and not recipe.flag("bf16_in_place"):
        worst = sorted(seen.stuck_in.items(), key=lambda each: -each[1])
        for tensor, lost in worst if seen.unsure else worst[:1]:  # where the edge is unsure, so is the worst
            yield Flaw("lost_updates", "updates-lost", {"tensor": tensor}, lost, LOST_SHARE)
