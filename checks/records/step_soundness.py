"""Whether the tensors of a recorded step fit one another: a judge may then index and multiply them freely.

What does not fit was cut short or made up, so nothing of it is judged. Raises `Inconclusive` throughout.
"""

import math
from collections.abc import Iterator

from checks.errors import Inconclusive
from checks.records.steps import Placement, RankSteps, StepTensors
from checks.references.checkpoints.tensors import Tensor

_PER_TOKEN = ("logprob", "logsumexp", "logit_mean", "token_weight", "token_residual")
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
_WHOLE = frozenset({"I64", "I32", "I16", "I8", "U8", "BOOL"})


def require_sound(rank: RankSteps) -> None:
    """Refuse a rank whose full steps hold tensors that cannot belong together."""
    for step, record in rank.full.items():
        line = rank.line(step)
        for what in _misfits(record, len(line.micro_batches) if line else None):
            raise Inconclusive(
                f"rank {rank.rank}, step {step}: {what[:300]}",
                "the record was cut short or changed: run the procedure train_step again",
            )


def _misfits(record: StepTensors, batches: int | None) -> Iterator[str]:
    numbers = record.micro_numbers()
    if numbers != set(range(len(numbers))):
        yield f"micro-batches are missing between 0 and {max(numbers)}"
    elif batches is not None and numbers and len(numbers) != batches:
        yield f"tensors of {len(numbers)} micro-batches, and steps.jsonl tells of {batches}"
    else:
        for number in range(len(numbers)):
            yield from _tokens(record, number)
            yield from _witnesses(record, number)
        for name in record.parameters():
            yield from _parameter(record, name)
            yield from _placed(record, name)


def _tokens(record: StepTensors, number: int) -> Iterator[str]:
    """Labels are [B, T] and every value of a token has their shape."""
    labels = record.tensors.get(f"micro.{number}.labels")
    if labels is None:
        return
    if len(labels.shape) != 2 or labels.dtype not in _WHOLE:
        yield f"{labels.name} is {labels.dtype} {list(labels.shape)}, no token array"
    for name in _PER_TOKEN:
        found = record.tensors.get(f"micro.{number}.{name}")
        if found is not None and (found.shape != labels.shape or found.dtype not in _FLOATS):
            yield f"{found.name} is {found.dtype} {list(found.shape)}, its labels are {list(labels.shape)}"


def _witnesses(record: StepTensors, number: int) -> Iterator[str]:
    """Input and output gradient have as many positions, and a width."""
    for module in record.witnesses():
        names = [f"micro.{number}.witness.{module}.{part}" for part in ("input", "grad_output")]
        given, back = (record.tensors.get(name) for name in names)
        if given is None and back is None:
            continue
        if given is None or back is None or not _is_linear(given, back):
            yield f"the input and the output gradient of {module} do not belong together"


def _is_linear(given: Tensor, back: Tensor) -> bool:
    shaped = all(each.shape and each.shape[-1] > 0 and each.dtype in _FLOATS for each in (given, back))
    return shaped and math.prod(given.shape[:-1]) == math.prod(back.shape[:-1])


def _parameter(record: StepTensors, name: str) -> Iterator[str]:
    """Gradients and the value after the step have the shape and the sample of the value before it."""
    before = record.tensors[f"before.{name}"]
    for kind in ("before", "after", "grad.raw", "grad.used"):
        found = record.tensors.get(f"{kind}.{name}")
        if found is None:
            continue
        same = found.shape == before.shape and record.samples.get(found.name) == record.samples.get(
            before.name
        )
        if not same or found.dtype not in _FLOATS:
            yield f"{found.name} is {found.dtype} {list(found.shape)}, {before.name} {list(before.shape)}"
    for key in record.state_keys(name, "before"):
        old, new = (record.tensors.get(f"state.{when}.{name}.{key}") for when in ("before", "after"))
        if old is not None and new is not None and old.shape != new.shape:
            yield f"{old.name} is {list(old.shape)}, {new.name} {list(new.shape)}"
    for when in ("before", "after"):
        count = record.tensors.get(f"state.{when}.{name}.step")
        if count is not None and count.size != 1:
            yield f"{count.name} is {list(count.shape)}, no count"


def _placed(record: StepTensors, name: str) -> Iterator[str]:
    """A shard lies where its placement says, and is as large."""
    placement = record.placements.get(name)
    if placement is None:
        return
    before = record.tensors[f"before.{name}"]
    sample = record.samples.get(before.name)
    shape = sample.shape if sample else before.shape
    if placement.local_shape != shape or not _is_offset(placement):
        yield f"{before.name} is {list(shape)}, its placement says {list(placement.local_shape)}"


def _is_offset(placement: Placement) -> bool:
    offset = placement.offset
    return offset is None or (
        len(offset) == len(placement.local_shape) and all(0 <= each < 2**53 for each in offset)
    )
