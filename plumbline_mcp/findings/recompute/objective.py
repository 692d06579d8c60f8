"""The loss of a step: the mean over the global batch, what was differentiated, and what was logged."""

import math
from collections.abc import Iterator

import numpy as np

from plumbline_mcp.findings.recompute.answer import Answer, Flaw, unknown
from plumbline_mcp.findings.recompute.gradients import (
    Witness,
    clips_unseen,
    factor_of,
    last_place,
    scale_of,
)
from plumbline_mcp.findings.recompute.intervals import SUMMATION
from plumbline_mcp.findings.recompute.reading import number
from plumbline_mcp.findings.recompute.recipe import Recipe
from plumbline_mcp.findings.recompute.step_record import Rank, Run
from plumbline_mcp.findings.recompute.tokens import UNIT32, Tokens, narrowest, weight_flaws

Bounded = tuple[float, float]
"""A value and the bound on its rounding."""


def objective(answer: Answer, run: Run, recipe: Recipe, tokens: Tokens, found: list[Witness]) -> None:
    """Parts ``weights`` and ``loss`` of one full step."""
    step, world = tokens.step, run.record.world_size
    flaws = list(weight_flaws(tokens))
    answer.add(flaws)
    scale = scale_of(tokens, found, world)
    unseen = clips_unseen(run, recipe, step)
    if scale is not None:
        answer.measured("weights", f"token weight x averaging x tokens, step {step}", scale[0])
        if not abs(scale[0] - 1) <= scale[1] and not (scale[0] < 1 and unseen):
            answer.add(
                [Flaw("weights", "loss-scale-differs", {"step": step}, scale[0], f"1 +- {scale[1]:.2g}")]
            )
    elif tokens.count:
        answer.add(
            [unknown("weights", "scale-unknown", "what each token weighs was not recorded", step=step)]
        )
    if not tokens.count:
        answer.add([unknown("loss", "no-tokens", "no supervised token was recorded in full", step=step)])
        return
    mean = _mean(tokens)
    answer.measured("loss", f"mean loss in float64, step {step}", mean[0])
    right = scale is not None and abs(scale[0] - 1) <= scale[1] and not flaws
    answer.add(_loss_flaws(run, tokens, mean, _differentiated(run, tokens, found, mean[1], unseen), right))


def _mean(tokens: Tokens) -> Bounded:
    count = tokens.count
    mean = math.fsum(tokens.loss.tolist()) / count
    size = math.fsum(np.abs(tokens.loss).tolist()) / count
    return mean, float(tokens.loss_error.mean()) + SUMMATION * math.sqrt(count) * UNIT32 * size


def _values(run: Run, step: int) -> list[float | None]:
    return [number(b.get("differentiated")) for _, line in run.lines(step) for b in line["micro_batches"]]


def _differentiated(
    run: Run, tokens: Tokens, found: list[Witness], bound: float, unseen: bool
) -> Bounded | None:
    """The loss that was differentiated over the global batch, as averaging over ranks leaves it."""
    values = _values(run, tokens.step)
    known = [value for value in values if value is not None]
    factor, scale = (
        factor_of(found, run.record.world_size),
        scale_of(tokens, found, run.record.world_size),
    )
    if factor is None or scale is None or not values or len(known) < len(values):
        return None
    share = factor[0] / scale[0] if scale[0] < 1 and unseen else factor[0]
    rounding = narrowest(known) + factor[1] + UNIT32
    return math.fsum(known) * share, bound + rounding * math.fsum(map(abs, known)) * share


def _loss_flaws(
    run: Run, tokens: Tokens, mean: Bounded, whole: Bounded | None, right: bool
) -> Iterator[Flaw]:
    step = tokens.step
    broken = [value for value in _values(run, step) if value is not None and not math.isfinite(value)]
    if broken:
        yield Flaw("loss", "loss-not-finite", {"step": step}, str(broken[0]), mean[0])
    further = False
    if whole is not None and not broken and not abs(whole[0] - mean[0]) <= whole[1]:
        further = right and math.isfinite(whole[0])
        if further:
            why = "every token weighs right, and yet the loss differentiated has a further term"
            yield unknown("loss", "further-loss-term", why, step=step)
        else:
            yield Flaw("loss", "loss-differs", {"step": step}, whole[0], mean[0])
    wanted = whole if further and whole is not None else mean
    narrow = _narrow(run, step)
    for rank in run.ranks:
        value = _logged(rank, step)
        if value is None:
            continue
        allowed = wanted[1] + last_place(value) + 2 * UNIT32 * abs(value)
        allowed += 2.0**-8 * abs(wanted[0]) if narrow else 0.0
        if not abs(value - wanted[0]) <= allowed:
            yield Flaw("loss", "logged-loss-differs", {"step": step, "rank": rank.number}, value, wanted[0])


def _logged(rank: Rank, step: int) -> float | None:
    """The loss that a rank logged of that step alone; a first or gapless log is no mean over steps."""
    alone = step == 1 or step - 1 in rank.logged
    return rank.logged.get(step, {}).get("loss") if alone else None


def _narrow(run: Run, step: int) -> bool:
    """Whether the framework's own losses are bfloat16, so that what it logs may be rounded to it."""
    batches = [batch for _, line in run.lines(step) for batch in line["micro_batches"]]
    said = [v for b in batches for key in ("differentiated", "loss") if (v := number(b.get(key))) is not None]
    return bool(said) and narrowest(said) == 2.0**-8
