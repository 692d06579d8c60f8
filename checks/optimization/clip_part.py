"""Part ``clip``: the norm is taken over every gradient of every rank once, and scales them all alike."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from checks.optimization.case import Shard, StepCase, shards
from checks.optimization.gradient_parts import StepTokens, clips_unseen
from checks.optimization.loss_part import last_digit
from checks.records.steps import StepTensors
from checks.references.checkpoints.formats import FORMATS
from checks.rules import CLIP_EPSILON, NORM_ROUNDING
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of


@dataclass(frozen=True)
class _Norm:
    """The global norm, and the relative rounding that a framework's own may have."""

    value: float
    rounding: float


def clip_part(case: StepCase, steps: Iterable[StepTokens]) -> Part:
    """Judge the norm, its report and the scaling of every full step."""
    problems = [*_settings(case), *_left_out(case)]
    measurements: list[Measurement] = []
    judged = 0
    for tokens in steps:
        step = tokens.step
        norm = _norm(case, step)
        if norm is None:
            problems.append(_unknown(case, step))
            continue
        judged += 1
        measurements.append(
            Measurement(
                name=f"gradient norm over all shards, step {step}",
                value=norm.value,
                bound=case.recipe.max_grad_norm or None,
                rule="NORM_ROUNDING",
            )
        )
        problems += _reported(case, step, norm)
        if clips_unseen(case, step) and tokens.scale(case.world_size) is not None:
            problems += _scaled_unseen(case, tokens, norm)
        else:
            problems += _scaled(case, step, norm)
    coverage = Coverage(judged=judged, total=len(case.full_steps), unit="steps")
    return part_of("clip", problems, coverage=coverage, measurements=tuple(measurements))


def _settings(case: StepCase) -> Iterator[Problem]:
    """Every clipping call, of metrics steps too, has the recipe's maximum; inf only asks for the norm."""
    wanted = case.recipe.max_grad_norm
    for step in case.steps:
        for line in case.lines(step):
            found = line.clip.max_norm if line.clip and line.clip.kind != "clip_grad_value_" else None
            if found is None or not math.isfinite(found) or math.isclose(found, wanted, rel_tol=1e-6):
                continue
            yield Problem(
                code="max-norm-differs",
                message="gradients are clipped to another norm than the recipe's",
                place=Place(step=step),
                expected=f"{wanted:g}" if wanted else "no clipping",
                found=f"{found:g}",
                next_step="compare max_grad_norm with what the framework was given",
            )
            break


def _left_out(case: StepCase) -> Iterator[Problem]:
    """Where one step clips, every step does."""
    if not case.recipe.max_grad_norm:
        return
    clipped = {step: all(line.clip is not None for line in case.lines(step)) for step in case.steps}
    missing = [step for step, found in clipped.items() if not found]
    if missing and any(clipped.values()):
        yield Problem(
            code="not-clipped",
            message=f"{len(missing)} of {len(clipped)} steps made no call of the clipping function",
            place=Place(step=missing[0]),
            expected="a call in every step, as in the others",
            found="none",
            next_step="clip in every step, after its last micro-batch",
        )


def _unknown(case: StepCase, step: int) -> Problem:
    known = all(line.gradient_squares_raw for line in case.lines(step))
    return Problem(
        code="norm-unknown",
        outcome=Outcome.NOT_EVALUATED,
        message="the gradients have no finite norm"
        if known
        else "the squares of the gradients were not recorded on every rank",
        place=Place(step=step),
        next_step="record the step in full",
    )


def _norm(case: StepCase, step: int) -> _Norm | None:
    """sqrt of the squares' sum over all parameters, every shard once (replicas are one shard)."""
    squares: dict[tuple[str, tuple[int, ...] | None], float] = {}
    unit = 2.0**-24
    for rank in case.ranks:
        line, record = rank.line(step), rank.full.get(step)
        if line is None or record is None or not line.gradient_squares_raw:
            return None
        for name, value in _with_others(record, line.gradient_squares_raw).items():
            placement = record.placements.get(name)
            if placement is not None and placement.offset is None:
                return None
            squares.setdefault((name, placement.offset if placement else None), value)
            tensor = record.tensors.get(f"grad.raw.{name}")
            unit = max(unit, FORMATS[tensor.dtype].roundoff) if tensor else unit
    coarse = 3 * unit if unit > 2.0**-24 else 0.0
    total = sum(squares.values())
    return _Norm(math.sqrt(total), NORM_ROUNDING + coarse) if math.isfinite(total) else None


def _with_others(record: StepTensors, squares: dict[str, float]) -> dict[str, float]:
    """The squares with those of gradients that the optimizer does not hold: the norm is over the model's."""
    others = {
        name.removeprefix("grad.raw."): name
        for name in record.tensors
        if name.startswith("grad.raw.") and name not in record.samples
    }
    left = {name: tensor for name, tensor in others.items() if name not in squares}
    owned = {name: value for name, value in squares.items() if not (left and name.startswith("unowned."))}
    return owned | {name: float((record.array(tensor) ** 2).sum()) for name, tensor in left.items()}


def _reported(case: StepCase, step: int, norm: _Norm) -> Iterator[Problem]:
    """What the clipping function returned, and what was logged as the norm."""
    for rank in case.ranks:
        line = rank.line(step)
        clip = line.clip if line else None
        returned = clip.returned if clip and not clip.returned_placement else None
        euclidean = clip is not None and clip.norm_type in (None, 2.0) and clip.kind != "clip_grad_value_"
        logged = rank.logged.get(step, {}).get("grad_norm")
        reports = [("returned by the clipping function", returned, 0.0)] if euclidean else []
        if logged is not None:
            reports.append(("logged", logged, last_digit(logged)))
        for what, value, digit in reports:
            if value is None:
                continue
            allowed = norm.rounding * norm.value + digit
            if not abs(value - norm.value) <= allowed:
                yield Problem(
                    code="norm-differs",
                    message=f"the gradient norm {what} is not the norm over every shard counted once",
                    place=Place(step=step, rank=rank.rank),
                    expected=f"{norm.value:.6g} ± {allowed:.2g}",
                    found=f"{value:.6g}",
                    next_step="look for a norm of this rank's shards alone, or of replicas counted again",
                )


def _scaled(case: StepCase, step: int, norm: _Norm) -> Iterator[Problem]:
    """Every gradient becomes min(1, max_norm / norm) times itself, and nothing without clipping."""
    low, high = _coefficients(case.recipe.max_grad_norm, norm)
    for shard in shards(case, step):
        ratio = _ratio(shard, case.model_name(shard.parameter))
        if ratio is None:
            continue
        value, residual, unit = ratio
        if low - 2 * unit <= value <= high + 2 * unit and residual <= 2 * unit:
            continue
        clipped, changed = high < 1, residual > 2 * unit
        message = "the gradient was not scaled by the norm over every shard"
        if changed or not clipped:
            message = "the gradient that the optimizer got is another than the one that was clipped"
        yield Problem(
            code="not-clipped" if clipped and abs(value - 1) <= 2 * unit else "clip-differs",
            message=message,
            place=Place(step=step, rank=shard.rank, tensor=shard.parameter),
            expected=f"{(low + high) / 2:.6g} times the raw gradient",
            found=f"{value:.6g} times, and {residual:.2g} beside it",
            next_step="look for what changes gradients between clipping and the optimizer's step"
            if changed
            else "clip by the global norm, once, after the last micro-batch",
        )


def _scaled_unseen(case: StepCase, tokens: StepTokens, norm: _Norm) -> Iterator[Problem]:
    """No clipping call was seen: the recorded gradients have to be clipped already, or need no clipping.

    The witnesses tell by how much each was scaled; the norm before it is the recorded one over that scale.
    """
    weight = tokens.mean_weight()
    whole = tokens.scale(case.world_size)
    for one in tokens.witnesses:
        if weight is None or whole is None or one.residual > one.bound:
            continue
        scale = one.factor * weight[0] * tokens.count
        low, high = _coefficients(case.recipe.max_grad_norm, _Norm(norm.value / whole[0], norm.rounding))
        bound = one.bound + weight[1]
        if low - bound <= scale <= high + bound:
            continue
        yield Problem(
            code="not-clipped" if abs(scale - 1) <= bound else "clip-differs",
            message="the gradient was not scaled by the norm over every shard",
            place=Place(step=tokens.step, rank=one.rank, tensor=f"{one.module}.weight"),
            expected=f"{(low + high) / 2:.6g} times the mean's gradient",
            found=f"{scale:.6g} times",
            next_step="clip by the global norm, once, after the last micro-batch",
        )


def _coefficients(largest: float, norm: _Norm) -> tuple[float, float]:
    """Range of the factor: torch divides by norm + 1e-6, the definition by the norm."""
    if not largest:
        return 1.0, 1.0
    high = largest / (norm.value * (1 - norm.rounding)) if norm.value else 1.0
    low = largest / (norm.value * (1 + norm.rounding) + CLIP_EPSILON)
    return min(1.0, low), min(1.0, high)


def _ratio(shard: Shard, raw_name: str) -> tuple[float, float, float] | None:
    """(<used, raw> / <raw, raw>, what is beside it, unit roundoff of the gradient)."""
    names = [f"grad.raw.{raw_name}", f"grad.used.{shard.parameter}"]
    if any(name not in shard.first.tensors for name in names):
        return None
    raw, used = (shard.first.array(name).reshape(-1) for name in names)
    size = float(raw @ raw)
    if size == 0 or raw.shape != used.shape or not math.isfinite(size):
        return None
    value = float(used @ raw) / size
    rest = float(np.linalg.norm(used - value * raw))
    unit = max(FORMATS[shard.first.tensors[name].dtype].roundoff for name in names)
    tiny = 2.0**-126 * math.sqrt(raw.size)
    beside = max(0.0, rest - tiny) / (abs(value) * math.sqrt(size)) if value else math.inf
    return value, beside, unit
