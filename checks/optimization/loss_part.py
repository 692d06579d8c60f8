"""Part ``loss``: what was differentiated and what was logged is the mean over the global batch."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from checks.optimization.case import StepCase
from checks.optimization.gradient_parts import StepTokens, clips_unseen, weights_are_right
from checks.optimization.tokens import precision_of
from checks.records.steps import RankSteps
from checks.rules import SUMMATION_DEVIATIONS
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of

_FLOAT32 = 2.0**-24


def reference_loss(step: StepTokens) -> tuple[float, float] | None:
    """(mean loss in float64, bound on the rounding of a framework's own) over the supervised tokens."""
    losses = [batch.losses for batch in step.batches]
    if not step.count:
        return None
    mean = float(np.concatenate(losses).sum()) / step.count
    errors = sum(float(batch.errors.sum()) for batch in step.batches) / step.count
    size = sum(float(np.abs(part).sum()) for part in losses) / step.count
    return mean, errors + SUMMATION_DEVIATIONS * math.sqrt(step.count) * _FLOAT32 * size


_NOT_LOGGED = (
    "the logged loss was judged in {logged} of {judged} steps: in the others the run logged none, or a mean"
    " over several steps"
)


def last_digit(value: float) -> float:
    """Half a unit of the last decimal digit that a number was logged with."""
    mantissa, _, power = repr(value).partition("e")
    return 0.5 * 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))


def loss_part(case: StepCase, steps: Iterable[StepTokens]) -> Part:
    """Compare the differentiated and the logged loss of every full step with the reference."""
    problems: list[Problem] = []
    measurements: list[Measurement] = []
    judged = total = logged = 0
    for step in steps:
        total += 1
        found = reference_loss(step)
        if found is None:
            continue
        judged += 1
        logged += any(_logged_alone(rank, step.step) is not None for rank in case.ranks)
        mean, bound = found
        measurements.append(
            Measurement(name=f"mean loss in float64, step {step.step}", value=mean, bound=bound, unit="nats")
        )
        problems += [*_differentiated(case, step, mean, bound), *_logged(case, step, mean, bound)]
    coverage = Coverage(judged=judged, total=total, unit="steps")
    notes = () if logged == judged else (_NOT_LOGGED.format(logged=logged, judged=judged),)
    return part_of("loss", problems, coverage=coverage, measurements=tuple(measurements), notes=notes)


def _differentiated_values(case: StepCase, step: StepTokens) -> list[float | None]:
    return [batch.differentiated for line in case.lines(step.step) for batch in line.micro_batches]


def _whole(case: StepCase, step: StepTokens, bound: float) -> tuple[float, float] | None:
    """(the loss that was differentiated over the global batch, bound on its rounding and the mean's)."""
    factor, scale = step.factor(case.world_size), step.scale(case.world_size)
    values = _differentiated_values(case, step)
    known = [value for value in values if value is not None]
    if factor is None or scale is None or not values or len(known) < len(values):
        return None
    averaging = factor[0] / (scale[0] if scale[0] < 1 and clips_unseen(case, step.step) else 1.0)
    rounding = (precision_of(known) + factor[1] + _FLOAT32) * sum(map(abs, known)) * averaging
    return sum(known) * averaging, bound + rounding


def _differentiated(case: StepCase, step: StepTokens, mean: float, bound: float) -> Iterator[Problem]:
    wrong = [value for value in _differentiated_values(case, step) if value and not math.isfinite(value)]
    if wrong:
        yield Problem(
            code="loss-not-finite",
            message="the loss that was differentiated is not finite",
            place=Place(step=step.step),
            expected=f"{mean:.6g} ± {bound:.2g}",
            found=f"{wrong[0]} in {len(wrong)} micro-batches",
            next_step="look for an overflow, a logarithm of 0, or a mean over no token",
        )
        return
    whole = _whole(case, step, bound)
    if whole is not None:
        yield from _beside_mean(case, step, mean, whole)


def _beside_mean(
    case: StepCase, step: StepTokens, mean: float, whole: tuple[float, float]
) -> Iterator[Problem]:
    found, allowed = whole
    if abs(found - mean) <= allowed and math.isfinite(found):
        return
    further = math.isfinite(found) and weights_are_right(case, step)
    yield Problem(
        code="further-loss-term" if further else "loss-differs",
        outcome=Outcome.INCONCLUSIVE if further else Outcome.FAIL,
        message="every token weighs right, and yet the loss differentiated is another: it has a further term"
        if further
        else "the loss that was differentiated is not the mean over the global batch",
        place=Place(step=step.step),
        expected=f"{mean:.6g} ± {allowed:.2g}",
        found=f"{found:.6g}",
        next_step="switch the further term off for this check (of a mixture of experts the balance loss:"
        " output_router_logits), or compare the loss function with the recipe"
        if further
        else "compare the loss function with the recipe",
    )


def _logged_alone(rank: RankSteps, step: int) -> float | None:
    """The loss that a rank logged of that step; None for a mean over several steps."""
    alone = step == 1 or step - 1 in rank.logged
    return rank.logged.get(step, {}).get("loss") if alone else None


def _logged(case: StepCase, step: StepTokens, mean: float, bound: float) -> Iterator[Problem]:
    mean, bound = _with_further_term(case, step, mean, bound)
    for rank in case.ranks:
        value = _logged_alone(rank, step.step)
        if value is None:
            continue
        allowed = bound + last_digit(value) + 2 * _FLOAT32 * abs(value)
        allowed += 2.0**-8 * abs(mean) if _narrow_loss(case, step) else 0.0
        if not (math.isfinite(value) and abs(value - mean) <= allowed):
            yield Problem(
                code="logged-loss-differs",
                message="the loss that was logged is not the mean over the global batch",
                place=Place(step=step.step, rank=rank.rank),
                expected=f"{mean:.6g} ± {allowed:.2g}",
                found=f"{value:.6g}",
                next_step="look for a mean taken per rank or micro-batch, or a factor on the logged value",
            )


def _with_further_term(case: StepCase, step: StepTokens, mean: float, bound: float) -> tuple[float, float]:
    """What should be logged: the loss differentiated, where only a further term sets it apart."""
    whole = _whole(case, step, bound)
    further = whole is not None and math.isfinite(whole[0]) and abs(whole[0] - mean) > whole[1]
    return whole if whole and further and weights_are_right(case, step) else (mean, bound)


def _narrow_loss(case: StepCase, step: StepTokens) -> bool:
    """Whether the framework's own losses are in bfloat16, so that their sum may be rounded to it."""
    values = [
        value
        for line in case.lines(step.step)
        for batch in line.micro_batches
        for value in (batch.differentiated, batch.loss)
        if value is not None
    ]
    return bool(values) and precision_of(values) == 2.0**-8
