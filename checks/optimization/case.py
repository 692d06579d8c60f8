"""What the optimizer-step check judges: the recipe beside what every rank recorded."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from checks.check import Context
from checks.records.steps import Parameter, RankSteps, StepLine, StepTensors
from checks.references.checkpoints.formats import FORMATS, encoded
from checks.references.checkpoints.tensors import MemorySource, Tensor
from checks.references.recipe import Recipe
from checks.references.schedules import learning_rate
from checks.rules import MAX_STEP_ELEMENTS
from checks.verdict import Problem


@dataclass(frozen=True)
class StepCase:
    """A recorded run.

    ``only``: the parameters that are judged element by element, None for all; ``known_masters``: `masters` of
    the run that this is a slice of.
    """

    recipe: Recipe
    total_steps: int
    world_size: int
    ranks: tuple[RankSteps, ...]
    rank_problems: tuple[Problem, ...] = ()
    context: Context = field(default_factory=Context)
    only: frozenset[str] | None = None
    known_masters: Mapping[str, str] | None = None

    @cached_property
    def full_steps(self) -> tuple[int, ...]:
        """Steps that every rank recorded in full and made, with every optimizer."""
        steps = [set(rank.full) - rank.skipped - rank.partly for rank in self.ranks]
        return tuple(sorted(set.intersection(*steps))) if steps else ()

    def rate(self, step: int) -> float:
        """The learning rate that the recipe's schedule gives a step.

        A schedule goes on in steps that a gradient scaler leaves out, or stands still with the optimizer: the
        recipe does not say which, so the recorded rates tell which of the two it is for the whole run.
        """
        position = step - self._left_out(step) if self._stands_still else step
        return learning_rate(self.recipe, position, self.total_steps)

    def _left_out(self, step: int) -> int:
        """How many steps before one every rank left out."""
        skipped = [rank.skipped for rank in self.ranks]
        return sum(each < step for each in frozenset.intersection(*skipped)) if skipped else 0

    @cached_property
    def _stands_still(self) -> bool:
        on = still = 0.0
        for line in (line for rank in self.ranks for line in rank.lines if self._left_out(line.step)):
            for rate in (rate for group in line.groups if (rate := group.number("lr")) is not None):
                on += abs(rate - learning_rate(self.recipe, line.step, self.total_steps))
                behind = line.step - self._left_out(line.step)
                still += abs(rate - learning_rate(self.recipe, behind, self.total_steps))
        return still < on

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Every step that a rank recorded."""
        return tuple(sorted({line.step for rank in self.ranks for line in rank.lines}))

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """The model's parameters by name, as the first rank listed them last before or at the start."""
        return _at(self.ranks[0], ("start", "built", "loaded-2", "loaded-1", "end")) if self.ranks else {}

    def at_end(self, rank: RankSteps) -> Mapping[str, Parameter]:
        """The parameters as a rank listed them when training had ended."""
        return _at(rank, ("end",))

    def at_start(self, rank: RankSteps) -> Mapping[str, Parameter]:
        """The parameters as a rank listed them when training began."""
        return _at(rank, ("start",))

    def lines(self, step: int) -> list[StepLine]:
        """The records of one step, a rank each."""
        return [line for rank in self.ranks if (line := rank.line(step)) is not None]

    def tensors(self, step: int) -> list[tuple[int, StepTensors]]:
        """(rank, tensors) of a step that was recorded in full."""
        return [(rank.rank, rank.full[step]) for rank in self.ranks if step in rank.full]

    @cached_property
    def masters(self) -> Mapping[str, str]:
        """The model's parameter that each wider copy in the optimizer is the master of, by the copy's name.

        A copy is a master when it is float32, the model's parameter is narrower, the copy's first value
        rounds to the model's, and the model moves in training; any other copy is a stale parameter.
        """
        if self.known_masters is not None:
            return self.known_masters
        return dict(find_masters(self)) if self.ranks and self.full_steps[:1] == (1,) else {}

    def model_name(self, name: str) -> str:
        """The model's name of what the optimizer holds under a name."""
        return self.masters.get(name, name)

    def judged(self, name: str) -> bool:
        """Whether a parameter is one that is judged element by element."""
        return self.only is None or name in self.only

    def with_tensors(self, step: int, changes: Mapping[int, Mapping[str, np.ndarray]]) -> "StepCase":
        """A copy with other values, by rank and name: in the old dtype, or new tensors in float32."""
        ranks = []
        for rank in self.ranks:
            if rank.rank in changes and step in rank.full:
                old = rank.full[step]
                tensors = dict(old.tensors)
                for name, values in changes[rank.rank].items():
                    tensors[name] = in_memory(name, values, tensors.get(name))
                full = {**rank.full, step: replace(old, tensors=tensors)}
                rank = replace(rank, full=full)
            ranks.append(rank)
        return replace(self, ranks=tuple(ranks))

    def with_lines(self, step: int, lines: Mapping[int, StepLine]) -> "StepCase":
        """A copy with other lines of one step, by rank."""
        ranks = tuple(
            replace(
                rank,
                lines=tuple(
                    lines[rank.rank] if line.step == step and rank.rank in lines else line
                    for line in rank.lines
                ),
            )
            for rank in self.ranks
        )
        return replace(self, ranks=ranks)


def _at(rank: RankSteps, moments: tuple[str, ...]) -> dict[str, Parameter]:
    for moment in moments:
        found = {each.name: each for each in rank.parameters if each.when == moment}
        if found:
            return found
    return {}


def in_memory(name: str, values: np.ndarray, like: Tensor | None) -> Tensor:
    """A tensor of these values, rounded to the dtype of the one that it replaces."""
    if like is None:
        return Tensor(name, "F32", values.shape, MemorySource(values.astype("<f4").tobytes()))
    data = encoded(np.asarray(values, np.float64).reshape(-1), FORMATS[like.dtype])
    return replace(like, source=MemorySource(data))


@dataclass(frozen=True)
class Shard:
    """One distinct part of a parameter and the ranks that hold it: more than one where it is replicated."""

    parameter: str
    offset: tuple[int, ...] | None
    holders: tuple[tuple[int, StepTensors], ...]

    @property
    def first(self) -> StepTensors:
        """The record of the first rank that holds it."""
        return self.holders[0][1]

    @property
    def rank(self) -> int:
        """That rank."""
        return self.holders[0][0]


def find_masters(case: StepCase) -> Iterator[tuple[str, str]]:
    """(name of the optimizer's copy, name of the model's parameter), from the first rank's first step."""
    rank = case.ranks[0]
    record, end = rank.full[1], case.at_end(rank)
    left = {
        name: about
        for name, about in case.at_start(rank).items()
        if f"before.{name}" not in record.tensors and about.dtype in _NARROW and about.sha256
    }
    if all(name in end and end[name].sha256 == about.sha256 for name, about in left.items()):
        return  # the model never moved: it takes over no copy
    for copy in record.parameters():
        tensor = record.tensors[f"before.{copy}"]
        if copy.startswith("unowned.") and tensor.dtype == "F32" and not is_sampled(record, tensor.name):
            values = record.array(tensor.name).reshape(-1)
            for name, about in left.items():
                data = encoded(values, FORMATS[_NARROW[about.dtype]])
                if about.shape == tensor.shape and hashlib.sha256(data).hexdigest() == about.sha256:
                    yield copy, name
                    del left[name]
                    break


_NARROW = {"bfloat16": "BF16", "float16": "F16"}


def gradient_shards(case: StepCase, step: int) -> Iterator[Shard]:
    """Every distinct part of every parameter with a gradient, also where the optimizer holds a copy."""
    yield from shards(case, step)
    names: dict[str, list[tuple[int, StepTensors]]] = {}
    for rank, record in case.tensors(step):
        for tensor in record.tensors:
            name = tensor.removeprefix("grad.raw.")
            if name != tensor and f"before.{name}" not in record.tensors:
                names.setdefault(name, []).append((rank, record))
    yield from (Shard(name, None, tuple(holders)) for name, holders in names.items() if case.judged(name))


def shards(case: StepCase, step: int) -> Iterator[Shard]:
    """Every distinct part of every parameter that the optimizer held, in the order of recording."""
    parts: dict[tuple[str, tuple[int, ...] | None, int | None], list[tuple[int, StepTensors]]] = {}
    for rank, record in case.tensors(step):
        for name in record.parameters():
            placement = record.placements.get(name)
            unknown = placement is not None and placement.offset is None
            key = (name, placement.offset if placement else None, rank if unknown else None)
            parts.setdefault(key, []).append((rank, record))
    for (name, offset, _), holders in parts.items():
        if case.judged(name):
            yield Shard(name, offset, tuple(holders))


def is_sampled(record: StepTensors, name: str) -> bool:
    """Whether only a sample of a tensor was recorded."""
    return name in record.samples


def assembled(case: StepCase, step: int, parameter: str, name: str) -> np.ndarray | None:
    """float64[shape] of a whole tensor from the ranks' parts; None where a part is missing or sampled.

    ``name`` is the tensor's, e.g. ``grad.raw.<parameter>``.
    """
    found: np.ndarray | None = None
    covered = 0
    seen: set[tuple[int, ...]] = set()
    for _, record in case.tensors(step):
        if name not in record.tensors or is_sampled(record, name):
            continue
        placement = record.placements.get(parameter)
        if placement is None or not any(kind.startswith(("shard", "strided")) for kind in placement.kinds):
            return record.array(name)
        about = case.parameters.get(parameter)
        if placement.offset is None or about is None or math.prod(about.shape) > MAX_STEP_ELEMENTS:
            return None
        part = record.array(name)
        found = np.full(about.shape, np.nan) if found is None else found
        box = tuple(slice(at, at + size) for at, size in zip(placement.offset, part.shape, strict=True))
        if found[box].shape != part.shape:
            return None
        found[box] = part
        if placement.offset not in seen:
            seen.add(placement.offset)
            covered += part.size
    return found if found is not None and covered == found.size else None
