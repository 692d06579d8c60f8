"""What a rank recorded of the built model beside its tensors: configuration, modules, adapters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError

from checks.errors import Inconclusive
from checks.records.recorder_state import unfinished
from checks.records.runs import RunFolder, json_lines
from checks.rules import MAX_MODEL_RECORDS
from checks.verdict import Frozen

LineT = TypeVar("LineT", bound=Frozen)


class AdapterLine(Frozen):
    """One adapter of a layer as the layer holds it: rank by the shape of A, alpha, and the factor of B A."""

    adapter: str = Field(max_length=200)
    rank: int | None = None
    alpha: float | None = None
    scaling: float | None = None
    active: bool | None = None
    merged: bool = False


class BuiltLine(Frozen):
    """One line of ``built.jsonl``: the model, or one of its modules."""

    kind: Literal["model", "module"]
    class_: str = Field(alias="class", max_length=200)
    training: bool
    config: dict[str, JsonValue] | None = None
    name: str = Field("", max_length=1000)
    linear: bool = False
    values: dict[str, JsonValue] = {}
    adapters: tuple[AdapterLine, ...] = ()


class RefusalLine(Frozen):
    """One line of ``refusals.jsonl``: how the launch of settings ended that the framework has to refuse."""

    name: str = Field(max_length=200)
    code: int | None = None
    timed_out: bool = False
    said: str = Field("", max_length=2000)


@dataclass(frozen=True)
class BuiltModel:
    """The built model of one rank: its own line, and its modules by name."""

    rank: int
    model: BuiltLine | None = None
    modules: Mapping[str, BuiltLine] = field(default_factory=dict, repr=False)


def read_built(run: RunFolder) -> list[BuiltModel]:
    """Every rank that ended well and whose recorder did, by rank. Raises `Inconclusive`."""
    clean = {ended.rank for ended in run.exits() if ended.clean}
    found = [_rank(run, folder) for folder in run.rank_folders() if not unfinished(run, folder)]
    return [each for each in found if each.rank in clean]


def _rank(run: RunFolder, folder: str) -> BuiltModel:
    digits = folder.rpartition("-")[2]
    if not digits.isdecimal():
        raise Inconclusive(f"run {run.job.run_id}: {folder} is no rank's folder")
    model, modules = None, dict[str, BuiltLine]()
    for number, raw in json_lines(run, f"{folder}/built.jsonl", MAX_MODEL_RECORDS):
        line = _line(f"run {run.job.run_id}: {folder}/built.jsonl, line {number}", raw, BuiltLine)
        if line.kind == "model" and model is None:
            model = line
        elif line.kind == "module" and line.name not in modules:
            modules[line.name] = line
        else:
            raise Inconclusive(f"run {run.job.run_id}: {folder}/built.jsonl, line {number} comes twice")
    return BuiltModel(int(digits), model, modules)


def read_refusals(run: RunFolder) -> tuple[RefusalLine, ...]:
    """How each launch of refused settings ended. Raises `Inconclusive`."""
    names = [name for name in run.files("records/") if name.endswith("/refusals.jsonl")]
    return tuple(
        _line(f"run {run.job.run_id}: {name}, line {number}", raw, RefusalLine)
        for name in names
        for number, raw in json_lines(run, name, MAX_MODEL_RECORDS)
    )


def _line(where: str, raw: Any, model: type[LineT]) -> LineT:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Inconclusive(f"{where} does not fit the record schema: {place}: {first['msg']}") from error
