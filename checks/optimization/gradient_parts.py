"""Parts ``weights`` and ``gradient``: what every token weighs in the gradient that the optimizer gets."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from checks.optimization.case import Shard, StepCase, gradient_shards
from checks.optimization.tokens import TokenBatch, mean_error
from checks.optimization.witnesses import Measured
from checks.rules import MAX_TOKEN_WEIGHT_ERROR, SAME_DIRECTION_RESIDUAL
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of


@dataclass(frozen=True)
class StepTokens:
    """The token records of one full step."""

    step: int
    batches: tuple[TokenBatch, ...]
    witnesses: tuple[Measured, ...]

    @property
    def count(self) -> int:
        """Supervised tokens of the global batch."""
        return sum(batch.count for batch in self.batches)

    def factor(self, world_size: int) -> tuple[float, float] | None:
        """(c, relative bound): what is left of each rank's gradient after averaging, as the witnesses show.

        One process without a witness has nothing to average with: 1.
        """
        told = [each for each in self.witnesses if each.residual <= each.bound]
        if told:
            best = min(told, key=lambda each: each.bound)
            return best.factor, best.bound
        return (1.0, 0.0) if world_size == 1 and not self.witnesses else None

    def scale(self, world_size: int) -> tuple[float, float] | None:
        """(c x mean weight x N, bound): 1 where the optimizer gets the gradient of the global mean."""
        overall, factor = self.mean_weight(), self.factor(world_size)
        if overall is None or factor is None:
            return None
        return overall[0] * factor[0] * self.count, overall[1] + factor[1]

    def mean_weight(self) -> tuple[float, float] | None:
        """(mean weight, relative bound) over the tokens of the global batch that can tell."""
        found = [(told, batch.rank) for batch in self.batches if (told := batch.mean_weight())]
        total = sum(count for (_, _, count), _ in found)
        if not total:
            return None
        weight = sum(value * count for (value, _, count), _ in found) / total
        errors = np.concatenate([batch.told_errors for batch in self.batches])
        return weight, mean_error(errors)


def weights_part(case: StepCase, steps: Iterable[StepTokens]) -> Part:
    """Every supervised token weighs as much as every other, 1 / N in the end, and no other token anything."""
    problems: list[Problem] = []
    measurements: list[Measurement] = []
    judged = total = 0
    for step in steps:
        total += step.count
        judged += sum(told[2] for batch in step.batches if (told := batch.mean_weight()))
        problems += [*_outside(step), *_not_cross_entropy(step), *_unequal(step), *_unequal_ranks(step)]
        problems += _unequal_tokens(step)
        problems += _scale(case, step, measurements)
    coverage = Coverage(judged=judged, total=total, unit="supervised tokens")
    return part_of("weights", problems, coverage=coverage, measurements=tuple(measurements))


def _outside(step: StepTokens) -> Iterator[Problem]:
    for batch in step.batches:
        size, row, token = batch.outside
        if not size <= 0:
            yield Problem(
                code="unsupervised-token-trained",
                message="a token whose label is masked has a gradient",
                place=Place(step=step.step, rank=batch.rank, sequence=row, token=token),
                expected="no gradient where the label is -100",
                found=f"|dL/dlogits| = {size:.3g} in micro-batch {batch.number}",
                next_step="look for labels that change between the collator and the loss, or a shift of one",
            )


def _not_cross_entropy(step: StepTokens) -> Iterator[Problem]:
    """g is w (softmax - q): what is left over comes from another loss, or another label smoothing."""
    for batch in step.batches:
        if batch.residuals is None:
            continue
        over = np.abs(batch.residuals) - 2 * batch.weight_errors
        if batch.count and not float(over.max()) <= 0:
            worst = int(np.nan_to_num(over, nan=np.inf).argmax())
            yield Problem(
                code="not-cross-entropy",
                message="the gradient at the logits is not that of the recipe's cross-entropy",
                place=Place(step=step.step, rank=batch.rank),
                expected=f"at most {2 * batch.weight_errors[worst]:.2g} of it beside the cross-entropy's",
                found=f"{batch.residuals[worst]:.3g} in micro-batch {batch.number}",
                next_step="compare label_smoothing and the loss function with the recipe",
            )


def _unequal(step: StepTokens) -> Iterator[Problem]:
    overall = step.mean_weight()
    if overall is None:
        return
    mean, mean_bound = overall
    for batch in step.batches:
        told = batch.mean_weight()
        if told is None:
            continue
        weight, bound, _ = told
        if not abs(weight - mean) <= (bound + mean_bound) * abs(mean):
            yield Problem(
                code="token-weights-differ",
                message=f"tokens of micro-batch {batch.number} weigh {weight / mean:.4g} times the mean",
                place=Place(step=step.step, rank=batch.rank),
                expected=f"every supervised token weighs the same (within {bound + mean_bound:.2g})",
                found=f"{batch.count} of {step.count} tokens weigh {weight:.6g}, on average {mean:.6g}",
                next_step="divide the summed loss of every micro-batch by the tokens of the global batch",
            )


def _unequal_tokens(step: StepTokens) -> Iterator[Problem]:
    """Within a micro-batch: the token that is farthest outside its own bound."""
    for batch in step.batches:
        if batch.weights is None or batch.mean_weight() is None:
            continue
        told = batch.weight_errors <= MAX_TOKEN_WEIGHT_ERROR
        middle = float(np.median(batch.weights[told]))
        # Three quarters of the tokens lie within this bound of the one true weight, so the median does.
        bounds = batch.weight_errors + np.quantile(batch.told_errors, 0.75)
        far = np.abs(batch.weights - middle) - bounds * abs(middle)
        wrong = told & ~(far <= 0)
        if wrong.any():
            worst = int(np.where(wrong, np.nan_to_num(far, nan=np.inf), -np.inf).argmax())
            row, token = (int(each) for each in batch.places[worst])
            yield Problem(
                code="token-weights-differ",
                message=f"{int(wrong.sum())} of {batch.count} tokens of micro-batch {batch.number} weigh"
                " otherwise than the others",
                place=Place(step=step.step, rank=batch.rank, sequence=row, token=token),
                expected=f"{middle:.6g} (within {bounds[worst]:.2g} of it)",
                found=f"{batch.weights[worst]:.6g}",
                next_step="look for a mean taken per sequence, or a weight for each token",
            )


def _unequal_ranks(step: StepTokens) -> Iterator[Problem]:
    """The same over all tokens of a rank: more tokens, so less rounding."""
    overall = step.mean_weight()
    ranks = sorted({batch.rank for batch in step.batches})
    if overall is None or len(ranks) < 2:
        return
    for rank in ranks:
        told = replace(step, batches=tuple(each for each in step.batches if each.rank == rank)).mean_weight()
        if told is None or abs(told[0] - overall[0]) <= (told[1] + overall[1]) * abs(overall[0]):
            continue
        yield Problem(
            code="token-weights-differ",
            message=f"tokens of rank {rank} weigh {told[0] / overall[0]:.4g} times the mean",
            place=Place(step=step.step, rank=rank),
            expected=f"every supervised token weighs the same (within {told[1] + overall[1]:.2g})",
            found=f"{told[0]:.6g}, on average {overall[0]:.6g}",
            next_step="divide the summed loss of every rank by the tokens of the global batch",
        )


def _scale(case: StepCase, step: StepTokens, measurements: list[Measurement]) -> Iterator[Problem]:
    """c times the mean weight is 1 / N."""
    scale = step.scale(case.world_size)
    if scale is None:
        if step.count:
            yield _unknown_scale(step)
        return
    product, bound = scale
    measurements.append(
        Measurement(
            name=f"token weight x averaging x tokens, step {step.step}",
            value=product,
            bound=f"1 ± {bound:.2g}",
            rule="LOGIT_ROUNDING",
        )
    )
    if not abs(product - 1) <= bound and not (product < 1 and clips_unseen(case, step.step)):
        yield Problem(
            code="loss-scale-differs",
            message=f"the gradient is {product:.6g} times that of the mean over the global batch",
            place=Place(step=step.step),
            expected=f"1/{step.count} for each supervised token (within {bound:.2g})",
            found=f"{product / step.count:.6g}",
            next_step="look for a loss multiplied or divided by accumulation steps or ranks",
        )


def clips_unseen(case: StepCase, step: int) -> bool:
    """Whether the recipe clips and no call of a clipping function was seen: then c has the clipping in it."""
    return case.recipe.max_grad_norm > 0 and all(line.clip is None for line in case.lines(step))


def weights_are_right(case: StepCase, step: StepTokens) -> bool:
    """Whether every supervised token weighs the same, 1 / N, and no other anything."""
    scale = step.scale(case.world_size)
    return (
        scale is not None
        and abs(scale[0] - 1) <= scale[1]
        and not any(_unequal(step))
        and not any(_unequal_tokens(step))
        and not any(_outside(step))
        and not any(_not_cross_entropy(step))
        and not any(_unequal_ranks(step))
    )


def _unknown_scale(step: StepTokens) -> Problem:
    return Problem(
        code="scale-unknown",
        outcome=Outcome.NOT_EVALUATED,
        message="what each token weighs in the optimizer's gradient was not recorded",
        place=Place(step=step.step),
        next_step="record the step with its logits and a linear layer's inputs (compiled models hide both)",
    )


def gradient_part(case: StepCase, steps: Iterable[StepTokens]) -> Part:
    """Witness gradients are the sum over all micro-batches and ranks; replicas hold the same."""
    problems: list[Problem] = []
    measurements: list[Measurement] = []
    judged = total = 0
    for step in steps:
        total += 1
        judged += bool(step.witnesses)
        problems += _not_finite(case, step.step)
        if not step.witnesses:
            problems.append(_no_witness(case, step))
        for one in step.witnesses:
            problems += _direction(one)
        if step.witnesses:
            worst = max(step.witnesses, key=lambda one: one.residual / one.bound)
            measurements.append(
                Measurement(
                    name=f"gradient beside the sum of all contributions, step {step.step}",
                    value=worst.residual,
                    bound=worst.bound,
                    rule="GRADIENT_DEVIATIONS",
                    where=worst.module,
                )
            )
        for shard in gradient_shards(case, step.step):
            problems += replicas(shard, step.step, (f"grad.raw.{shard.parameter}",), "gradient")
    coverage = Coverage(judged=judged, total=total, unit="steps with a linear layer recorded")
    return part_of("gradient", problems, coverage=coverage, measurements=tuple(measurements))


def _not_finite(case: StepCase, step: int) -> Iterator[Problem]:
    """A step that was made although a gradient was NaN or infinite."""
    for line in case.lines(step):
        wrong = [name for name, square in (line.gradient_squares_raw or {}).items() if not square < np.inf]
        if wrong:
            yield Problem(
                code="gradient-not-finite",
                message=f"{len(wrong)} gradients are NaN or infinite, and the optimizer stepped with them",
                place=Place(step=step, tensor=wrong[0]),
                expected="finite gradients, or a step that is left out",
                found=f"a sum of squares of {(line.gradient_squares_raw or {})[wrong[0]]}",
                next_step="look for an overflow, a logarithm of 0, or a mean over no token",
            )
            return


def _no_witness(case: StepCase, step: StepTokens) -> Problem:
    said = next((each for rank in case.ranks for each in rank.unavailable), "")
    return Problem(
        code="no-witness",
        outcome=Outcome.NOT_EVALUATED,
        message="no linear layer was recorded whose gradient can be recomputed"
        + (f"; the recorder says: {said}" if said else ""),
        place=Place(step=step.step),
        next_step="run it without torch.compile, and train one linear layer that is not tied (the check looks"
        " at nn.Linear and Conv1D)",
    )


def _direction(one: Measured) -> Iterator[Problem]:
    place = Place(step=one.step, rank=one.rank, tensor=f"{one.module}.weight")
    if one.bound >= SAME_DIRECTION_RESIDUAL * 32:
        yield Problem(
            code="blind",
            outcome=Outcome.INCONCLUSIVE,
            message=f"rounding may hide a lost contribution: the bound is {one.bound:.2g}",
            place=place,
        )
    elif not one.residual <= one.bound:
        yield Problem(
            code="contribution-lost",
            message="the gradient is not the sum over the step's micro-batches and ranks",
            place=place,
            expected=f"at most {one.bound:.2g} beside it",
            found=f"{one.residual:.3g}",
            next_step="look for gradients that were not zeroed, accumulated or reduced over the ranks",
        )


def replicas(shard: Shard, step: int, names: tuple[str, ...], what: str) -> Iterator[Problem]:
    """Ranks that hold the same part hold the same bytes of it."""
    for name in names:
        first = shard.first.tensors.get(name)
        for rank, record in shard.holders[1:]:
            other = record.tensors.get(name)
            if (first is None) != (other is None) or (first and other and first.digest() != other.digest()):
                yield Problem(
                    code="replicas-differ",
                    message=f"ranks {shard.rank} and {rank} hold another {what} of one parameter",
                    place=Place(step=step, rank=rank, tensor=shard.parameter),
                    expected="the same bytes on every rank that holds it",
                    found="other bytes",
                    next_step="look for ranks that do not reduce their gradients",
                )
