"""The gradient of a witness weight, recomputed from what went into and came back to its module.

For a linear layer y = W x the gradient is S, the sum over all positions of grad_output^T input, here over all
micro-batches of all ranks and in float64. The recorded gradient has to be c S with one factor c; c times the
weight that the loss gave to each token is what the optimizer sees, and has to be 1 / N.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checks.errors import Inconclusive
from checks.optimization.case import Shard, StepCase, gradient_shards, is_sampled
from checks.records.steps import StepTensors
from checks.references.checkpoints.formats import FORMATS, rounded
from checks.rules import GRADIENT_DEVIATIONS, MAX_STEP_ELEMENTS

_FLOAT32 = 2.0**-24


@dataclass(frozen=True)
class Measured:
    """A witness weight's gradient on one shard.

    ``factor`` is c; ``residual`` ||G - c S|| / ||c S||; ``bound`` the largest relative rounding of either.
    """

    module: str
    step: int
    rank: int
    factor: float
    residual: float
    bound: float


@dataclass(frozen=True)
class _Summed:
    """S on the elements of a shard, float64[n], and the square of the bound on rounding in units of ||S||."""

    total: np.ndarray
    rounding: float


def measured(case: StepCase, step: int) -> list[Measured]:
    """Every witness of a step that can be judged, on every distinct shard."""
    found = []
    weights = {f"{module}.weight": module for module in _modules(case, step)}
    for shard in gradient_shards(case, step):
        model_name = case.model_name(shard.parameter)
        module = weights.get(model_name)
        name = f"grad.raw.{shard.parameter}"
        if shard.parameter != model_name and f"grad.raw.{model_name}" in shard.first.tensors:
            continue  # the model's own gradient tells more than its copy in the optimizer
        if module is not None and name in shard.first.tensors:
            one = _measure(case, step, module, shard)
            found += [one] if one is not None else []
    return found


def _modules(case: StepCase, step: int) -> set[str]:
    modules = [set(record.witnesses()) for _, record in case.tensors(step)]
    return set.union(*modules) if modules else set()


def _measure(case: StepCase, step: int, module: str, shard: Shard) -> Measured | None:
    name = f"grad.raw.{shard.parameter}"
    gradient = shard.first.array(name).reshape(-1)
    about = case.parameters.get(case.model_name(shard.parameter))
    unit = FORMATS[shard.first.tensors[name].dtype].roundoff
    summed = _sum(case, step, module, shard, about.shape if about else None, unit)
    if summed is None or len(summed.total) != len(gradient):
        return None
    size = float(np.linalg.norm(summed.total))
    if size == 0:
        return None
    factor = float(gradient @ summed.total) / size**2
    residual = float(np.linalg.norm(gradient - factor * summed.total))
    bound = GRADIENT_DEVIATIONS * np.sqrt(summed.rounding) / size
    return Measured(
        module, step, shard.rank, factor, residual / (abs(factor) * size) if factor else np.inf, float(bound)
    )


def _sum(
    case: StepCase, step: int, module: str, shard: Shard, shape: tuple[int, ...] | None, unit: float
) -> _Summed | None:
    """S over every micro-batch of every rank; None where one rank recorded no witness."""
    total: np.ndarray | None = None
    rounding, ranks = 0.0, 0
    for _, record in case.tensors(step):
        running: np.ndarray | None = None
        for given, slope, computed in _passes(record, module):
            if shape is not None and (slope.shape[1], given.shape[1]) != shape:
                return None
            part = _picked(given, slope, shard)
            if part is None:
                return None
            worst = max(unit, computed)
            running = part if running is None else running + part
            crossed = float(((slope**2).sum(1) * (given**2).sum(1)).sum())
            share = part.size / (slope.shape[1] * given.shape[1])
            rounding += worst**2 * (float(part @ part) + float(running @ running))
            rounding += _FLOAT32**2 * len(given) * crossed * share
        if running is None:
            return None
        total = running if total is None else total + running
        ranks += 1
    if total is None or ranks != case.world_size:
        return None
    return _Summed(total, rounding + unit**2 * ranks * float(total @ total))


def _passes(record: StepTensors, module: str) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """(input [n, in], grad_output [n, out], unit roundoff of the product) of each micro-batch.

    The two change places where the weight is [in, out]: its gradient is the transpose of the formula.
    Under autocast a layer rounds its input to the dtype that its output, and so its gradient, is in.
    """
    for number in range(record.micro_batches()):
        names = [f"micro.{number}.witness.{module}.{part}" for part in ("input", "grad_output")]
        if any(name not in record.tensors for name in names):
            continue
        given, slope = (record.array(name) for name in names)
        formats = [FORMATS[record.tensors[name].dtype] for name in names]
        if formats[1].roundoff > formats[0].roundoff and formats[1].bits >= 16:
            given = rounded(given, formats[1]).astype(np.float64)
        unit = max(each.roundoff for each in formats)
        given, slope = (each.reshape(-1, each.shape[-1]) for each in (given, slope))
        yield (slope, given, unit) if module in record.transposed else (given, slope, unit)


def contribution(record: StepTensors, module: str, shard: Shard) -> np.ndarray | None:
    """What a rank's first micro-batch adds to S, float64[n] on the shard's elements."""
    first = next(_passes(record, module), None)
    return None if first is None else _picked(first[0], first[1], shard)


def _picked(given: np.ndarray, slope: np.ndarray, shard: Shard) -> np.ndarray | None:
    """grad_output^T input on the elements that the shard's gradient was recorded of, flat."""
    if slope.shape[1] * given.shape[1] > MAX_STEP_ELEMENTS:
        raise Inconclusive(
            f"{shard.parameter}, whose gradient is recomputed from its layer's inputs, is too large for that"
        )
    record, name = shard.first, f"grad.raw.{shard.parameter}"
    placement = record.placements.get(shard.parameter)
    if placement is not None and placement.offset is not None:
        rows, columns = (
            slice(at, at + n) for at, n in zip(placement.offset, placement.local_shape, strict=True)
        )
        slope, given = slope[:, rows], given[:, columns]
    elif placement is not None:
        return None
    product: np.ndarray = (slope.T @ given).reshape(-1)
    return product[:: record.samples[name].stride] if is_sampled(record, name) else product
