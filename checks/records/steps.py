"""Reads what a run recorded of its training steps: ``steps.jsonl``, ``events.jsonl``, ``model.jsonl`` and the
tensors of steps that were recorded in full (layout: docs/run-folder.md).

Everything here was written inside the job, so it is untrusted: sizes are bounded, and tensors stay on disk
until they are looked at.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
)

from checks.errors import Inconclusive
from checks.records.recorder_state import unfinished
from checks.records.runs import RunFolder, json_lines
from checks.references.checkpoints.formats import FORMATS, decode
from checks.references.checkpoints.header import Unreadable, read_header
from checks.references.checkpoints.tensors import FileSource, Tensor
from checks.rules import MAX_RECORD_LINES, MAX_STEP_ELEMENTS
from checks.verdict import Evidence

STEP_FORMAT, STEP_VERSION = "plumbline-step", "1"


class _Record(BaseModel):
    """Fields that a later recorder adds are read over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Adapter(_Record):
    """The factor between the gradients at an adapted layer's output and at its adapter's output."""

    scaling: float | None = None
    residual: float | None = None


class Inactive(_Record):
    """A module in eval mode that does something in training mode only: ``setting`` says what, e.g. p 0.1."""

    module: str = Field(max_length=1000, description="empty: the model itself")
    setting: str = Field("", max_length=200)
    value: float = 0.0
    trained: bool


class Modes(_Record):
    """Modes of modules in a forward pass: the root's, where they turn from it, and what did not act."""

    training: bool
    turned: tuple[str, ...] = ()
    turned_more: int = Field(0, ge=0)
    inactive: tuple[Inactive, ...] = ()
    inactive_more: int = Field(0, ge=0)


class MicroBatch(_Record):
    """One forward and backward pass of a rank; ``modes`` None: no backward pass, or not recorded."""

    rows: int | None = None
    tokens: int | None = None
    supervised: int | None = None
    loss: float | None = None
    differentiated: float | None = None
    logits_dtype: str | None = None
    modes: Modes | None = None
    adapters: dict[str, Adapter | None] | None = None


class Group(BaseModel):
    """A parameter group as of the step; every scalar of it is in ``values``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    params: tuple[str, ...]

    @property
    def values(self) -> dict[str, Any]:
        """The group's hyperparameters by name."""
        return self.model_extra or {}

    def number(self, name: str) -> float | None:
        """A hyperparameter, where it is a number."""
        return _number(self.values.get(name))


class Clip(_Record):
    """A call of the clipping function."""

    kind: str = "clip_grad_norm_"
    max_norm: float | None = None
    norm_type: float | None = None
    returned: float | None = None
    returned_placement: tuple[str, ...] | None = None


class OptimizerName(BaseModel):
    """Which optimizer stepped."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    name: str = Field("", alias="class")
    number: int = 0


def _not_negative(value: float) -> float:
    if value < 0:
        raise ValueError("a sum of squares is negative")
    return value


Square = Annotated[float, AfterValidator(_not_negative)]
"""A sum of squares; NaN where a gradient is."""


class StepLine(_Record):
    """One optimizer step of one rank."""

    step: int = Field(ge=0)
    epoch: float | None = None
    recorded: str = "metrics"
    optimizer: OptimizerName = OptimizerName()
    micro_batches: tuple[MicroBatch, ...] = ()
    groups: tuple[Group, ...] = ()
    clip: Clip | None = None
    gradient_squares_raw: dict[str, Square] | None = None
    gradient_squares_used: dict[str, Square] | None = None

    @property
    def supervised(self) -> int | None:
        """Supervised tokens of the step, None where one micro-batch does not say."""
        counts = [each.supervised for each in self.micro_batches]
        return None if None in counts or not counts else sum(count or 0 for count in counts)


class Parameter(_Record):
    """A parameter as ``model.jsonl`` lists it at one moment."""

    when: str
    name: str
    kind: str = "parameter"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    sha256: str | None = None
    same_as: str | None = None
    module: str | None = None


class Sample(_Record):
    """A strided sample of a local tensor: ``flat[::stride]`` of ``shape``."""

    stride: int = Field(ge=1)
    shape: tuple[int, ...] = ()


class Placement(_Record):
    """Where a rank's local part lies in the whole tensor; no ``offset`` where the recorder could not tell."""

    kinds: tuple[str, ...] = ()
    local_shape: tuple[int, ...] = ()
    offset: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StepTensors:
    """The tensors of one full step on one rank.

    ``shifted``: labels lie where their logits do; ``transposed``: witnesses whose weight is [in, out].
    """

    tensors: Mapping[str, Tensor]
    samples: Mapping[str, Sample]
    placements: Mapping[str, Placement]
    shifted: bool
    transposed: frozenset[str] = frozenset()

    def array(self, name: str) -> npt.NDArray[np.float64]:
        """float64[shape] (a sample: float64[n]). Raises `KeyError`, `Inconclusive` (too large)."""
        tensor = self.tensors[name]
        if tensor.size > MAX_STEP_ELEMENTS:
            raise Inconclusive(f"{name} has {tensor.size:,} elements, more than {MAX_STEP_ELEMENTS:,}")
        try:
            return decode(tensor.codes(), FORMATS[tensor.dtype]).astype(np.float64).reshape(tensor.shape)
        except Unreadable as error:
            raise Inconclusive(f"a step's record cannot be read: {error}") from error

    def micro_numbers(self) -> set[int]:
        """Numbers of the micro-batches with tensors; of a sound record 0, 1, ... without a gap."""
        return {int(part) for part in (name.split(".")[1] for name in self._micro()) if part.isdecimal()}

    def micro_batches(self) -> int:
        """Number of micro-batches with tensors."""
        return len(self.micro_numbers())

    def witnesses(self) -> list[str]:
        """Modules whose inputs and output gradients were recorded, sorted."""
        found = (name.split(".", 3) for name in self._micro())
        return sorted(
            {each[3].rpartition(".")[0] for each in found if len(each) == 4 and each[2] == "witness"}
        )

    def parameters(self) -> list[str]:
        """Parameters with a value before the step, in their order of recording."""
        return [name.removeprefix("before.") for name in self.tensors if name.startswith("before.")]

    def state_keys(self, parameter: str, when: str) -> list[str]:
        """Keys of a parameter's optimizer state ``before`` or ``after`` the step."""
        return self._states.get(f"state.{when}.{parameter}", [])

    @cached_property
    def _states(self) -> dict[str, list[str]]:
        """Keys by everything before the last dot of ``state.<when>.<parameter>.<key>``."""
        found: dict[str, list[str]] = {}
        for name in self.tensors:
            if name.startswith("state."):
                place, _, key = name.rpartition(".")
                found.setdefault(place, []).append(key)
        return found

    def _micro(self) -> Iterator[str]:
        return (name for name in self.tensors if name.startswith("micro."))


@dataclass(frozen=True)
class RankSteps:
    """What one rank recorded.

    ``unavailable``: what its recorder says it could not see; ``failed``: it says that it could not record;
    ``skipped``: steps that a gradient scaler left out, because a gradient was not finite; ``partly``: steps
    that it left out for some of several optimizers.
    """

    rank: int
    lines: tuple[StepLine, ...]
    logged: Mapping[int, Mapping[str, float]]
    full: Mapping[int, StepTensors]
    parameters: tuple[Parameter, ...] = ()
    unavailable: tuple[str, ...] = ()
    failed: bool = False
    skipped: frozenset[int] = frozenset()
    partly: frozenset[int] = frozenset()

    def line(self, step: int) -> StepLine | None:
        """The record of one step."""
        return self._by_step.get(step)

    @cached_property
    def _by_step(self) -> dict[int, StepLine]:
        return {line.step: line for line in self.lines}


def read_rank(run: RunFolder, folder: str) -> tuple[RankSteps, list[Evidence]]:
    """Everything that one rank recorded of its steps. Raises `Inconclusive` where a record does not hold."""
    rank = int(folder.rpartition("-")[2])
    names = [name for name in run.files(f"{folder}/") if _is_read(name)]
    lines = _merged(_lines(run, f"{folder}/steps.jsonl", StepLine))
    events = list(_objects(run, f"{folder}/events.jsonl"))
    parameters = tuple(
        found for found in _lines(run, f"{folder}/model.jsonl", Parameter) if found.kind == "parameter"
    )
    full = {
        step: _step_tensors(run.verified(name), rank)
        for name in run.files(f"{folder}/step-")
        if (step := _step_number(name)) is not None
    }
    evidence = [run.evidence(name, "steps") for name in names]
    said = tuple(
        f"{event.get('what')}: {event.get('why')}"[:300]
        for event in events
        if event.get("event") == "unavailable"
    )
    failed = bool(unfinished(run, folder))
    said_out = (event.get("step") for event in events if event.get("event") == "skipped")
    left_out = frozenset(step for step in said_out if type(step) is int)
    made = left_out & {line.step for line in lines}
    steps = RankSteps(rank, lines, _logged(events), full, parameters, said, failed, left_out - made, made)
    return steps, evidence


def _is_read(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base in ("steps.jsonl", "events.jsonl", "model.jsonl") or _step_number(name) is not None


def _step_number(name: str) -> int | None:
    base = name.rpartition("/")[2]
    text = base.removeprefix("step-").removesuffix(".safetensors")
    fits = base.startswith("step-") and base.endswith(".safetensors") and text.isdecimal()
    return int(text) if fits else None


def _objects(run: RunFolder, name: str) -> Iterator[dict[str, Any]]:
    """One JSON object for each line; no file is no line."""
    for number, value in json_lines(run, name, MAX_RECORD_LINES):
        if not isinstance(value, dict):
            raise Inconclusive(f"{name}, line {number} is no JSON object")
        yield value


ModelT = TypeVar("ModelT", bound=BaseModel)


def _lines(run: RunFolder, name: str, model: type[ModelT]) -> Iterator[ModelT]:
    for number, value in enumerate(_objects(run, name), 1):
        try:
            yield model.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Inconclusive(f"{name}, line {number}: {where}: {first['msg']}") from error


def _merged(lines: Iterator[StepLine]) -> tuple[StepLine, ...]:
    """One line a step: several optimizers that step together are one step with the groups of all."""
    steps: dict[int, StepLine] = {}
    for line in lines:
        first = steps.get(line.step)
        steps[line.step] = line if first is None else _together(first, line)
    return tuple(steps[step] for step in sorted(steps))


def _together(first: StepLine, second: StepLine) -> StepLine:
    return first.model_copy(
        update={
            "groups": (*first.groups, *second.groups),
            "micro_batches": first.micro_batches or second.micro_batches,
            "clip": first.clip or second.clip,
            "gradient_squares_raw": {
                **(second.gradient_squares_raw or {}),
                **(first.gradient_squares_raw or {}),
            },
            "gradient_squares_used": {
                **(second.gradient_squares_used or {}),
                **(first.gradient_squares_used or {}),
            },
        }
    )


def _logged(events: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """What the framework logged, by step. Numbers written as text are numbers."""
    logged: dict[int, dict[str, float]] = {}
    for event in events:
        step, values = event.get("step"), event.get("values")
        if event.get("event") == "logged" and type(step) is int and isinstance(values, dict):
            found = {name: number for name, value in values.items() if (number := _number(value)) is not None}
            logged[step] = {**logged.get(step, {}), **found}
    return logged


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _step_tensors(path: Path, rank: int) -> StepTensors:
    try:
        header = read_header(path)
    except Unreadable as error:
        raise Inconclusive(f"a step's record cannot be read: {error}") from error
    about = header.metadata
    if (about.get("format"), about.get("version")) != (STEP_FORMAT, STEP_VERSION):
        raise Inconclusive(
            f"{path.name} is no step record: format {about.get('format', '')[:40]!r}, version "
            f"{about.get('version', '')[:40]!r} (this version reads {STEP_FORMAT} {STEP_VERSION})"
        )
    if about.get("rank") != str(rank):
        raise Inconclusive(
            f"{path.name} in the folder of rank {rank} says it is of rank {about.get('rank')!r}"
        )
    tensors = {
        name: Tensor(name, entry.dtype, entry.shape, FileSource(path, entry.begin), path.name)
        for name, entry in header.entries.items()
    }
    samples = _mapping(path, about.get("samples", "{}"), Sample)
    placements = _mapping(path, about.get("placements", "{}"), Placement)
    transposed = frozenset(_names(path, about.get("transposed", "[]")))
    return StepTensors(tensors, samples, placements, about.get("labels") == "shifted", transposed)


def _names(path: Path, text: str) -> list[str]:
    try:
        return TypeAdapter(list[str]).validate_json(text)
    except ValueError as error:
        raise Inconclusive(f"{path.name}: its metadata does not fit: {str(error)[:200]}") from error


def _mapping(path: Path, text: str, model: type[ModelT]) -> dict[str, ModelT]:
    try:
        raw = json.loads(text)
        return {name: model.model_validate(value) for name, value in raw.items() if value is not None}
    except (ValueError, RecursionError, AttributeError) as error:
        raise Inconclusive(f"{path.name}: its metadata does not fit: {str(error)[:200]}") from error
