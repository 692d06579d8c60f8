"""The model as every rank recorded it: names, dtypes, placements and digests; and the tensors it wrote whole.

A rank records local shards. What a shard is of the whole tensor is its *placement*; assembling is done by the
reader, so the recorder never issues a collective.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from checks.errors import Inconclusive
from checks.records.recorder_state import unfinished
from checks.records.runs import RunFolder, json_lines
from checks.references.checkpoints.formats import FORMATS
from checks.references.checkpoints.header import Header, Unreadable, read_header
from checks.references.checkpoints.tensors import FileSource, Tensor
from checks.rules import MAX_MODEL_RECORDS
from checks.verdict import Frozen

TENSORS_FORMAT = "plumbline-tensors"
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
}
"""torch's names of dtypes to those of the safetensors format."""

_Naturals = tuple[int, ...]


class Placement(Frozen):
    """Which box of the whole tensor a rank holds; ``kinds`` as torch names them, one for each mesh axis."""

    mesh: _Naturals = ()
    dims: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    local_shape: _Naturals
    offset: _Naturals | None = Field(None, description="null where the recorder cannot tell (strided shards)")
    coordinate: _Naturals | None = None


class Sample(Frozen):
    """Every ``stride``-th element of the local tensor, flattened, where the values are not written whole."""

    stride: int = Field(ge=1)
    values: tuple[float | None, ...] = ()


class ModelLine(Frozen):
    """One line of ``model.jsonl``: a parameter or buffer at one moment."""

    format: Literal[1] = 1
    when: str
    name: str = Field(max_length=1000)
    kind: Literal["parameter", "buffer"]
    persistent: bool = True
    shape: _Naturals
    dtype: str
    requires_grad: bool = False
    placement: Placement | None = None
    sha256: str | None = None
    nonfinite: int | None = None
    elements: int | None = None
    same_as: str | None = None
    sample: Sample | None = None
    module: str = ""


class FillLine(Frozen):
    """One line of ``fills.jsonl``: what was filled before the load, with which pattern."""

    format: Literal[1] = 1
    pass_: int = Field(alias="pass", ge=1)
    point: str
    pattern: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Recorded:
    """A parameter or buffer as one rank recorded it; ``values``: its local tensor, if written whole."""

    line: ModelLine
    rank: int
    values: Tensor | None = field(default=None, repr=False)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what this rank holds."""
        return self.line.placement.local_shape if self.line.placement else self.line.shape

    @property
    def offset(self) -> tuple[int, ...] | None:
        """Where that lies in the whole tensor; None where the record does not tell."""
        return self.line.placement.offset if self.line.placement else (0,) * len(self.line.shape)

    @property
    def dtype(self) -> str:
        """The dtype as safetensors names it; torch's own name where that has none."""
        return DTYPES.get(self.line.dtype, self.line.dtype)


@dataclass(frozen=True)
class RankModel:
    """What one rank recorded of the model: by moment, then by name; and what was filled in each pass."""

    rank: int
    moments: Mapping[str, Mapping[str, Recorded]] = field(repr=False)
    fills: tuple[FillLine, ...] = field(default=(), repr=False)
    failed: str = ""

    def at(self, moment: str) -> Mapping[str, Recorded]:
        """The model at a moment, empty where it was not recorded."""
        return self.moments.get(moment, {})


def read_models(run: RunFolder) -> list[RankModel]:
    """Every rank that recorded anything, by rank. Raises `Inconclusive` when a record does not hold.

    Of a rank that died, or whose recorder failed, nothing is read: its records may end anywhere.
    """
    clean = {ended.rank for ended in run.exits() if ended.clean}
    return [_rank(run, folder, clean) for folder in run.rank_folders()]


def _rank(run: RunFolder, folder: str, clean: set[int]) -> RankModel:
    digits = folder.rpartition("-")[2]
    if not digits.isdecimal():
        raise Inconclusive(f"run {run.job.run_id}: {folder} is no rank's folder")
    rank, failed = int(digits), unfinished(run, folder)
    if failed or rank not in clean:
        return RankModel(rank, {}, (), failed)
    moments: dict[str, dict[str, Recorded]] = {}
    for _, raw in json_lines(run, f"{folder}/model.jsonl", MAX_MODEL_RECORDS):
        line = _validated(run, f"{folder}/model.jsonl", ModelLine, raw)
        _refuse_misplaced(run, rank, line)
        if line.name in moments.setdefault(line.when, {}):
            raise Inconclusive(
                f"run {run.job.run_id}: rank {rank} records {line.name[:200]} twice at {line.when[:40]}"
            )
        moments[line.when][line.name] = Recorded(line, rank)
    fills = tuple(
        _validated(run, f"{folder}/fills.jsonl", FillLine, raw)
        for _, raw in json_lines(run, f"{folder}/fills.jsonl", MAX_MODEL_RECORDS)
    )
    for moment in sorted(moments):
        whole = _tensors(run, folder, moment)
        moments[moment] = {
            name: _with_values(run, entry, whole, moments[moment]) for name, entry in moments[moment].items()
        }
    return RankModel(rank, moments, fills, failed)


def _validated(run: RunFolder, name: str, model: "type[Any]", raw: Any) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Inconclusive(
            f"run {run.job.run_id}: {name} does not fit the record schema: {where}: {first['msg']}"
        ) from error


def _refuse_misplaced(run: RunFolder, rank: int, line: ModelLine) -> None:
    """A box lies inside its tensor. Raises `Inconclusive`."""
    where = f"run {run.job.run_id}: rank {rank} records {line.name[:200]}"
    if any(length < 0 for length in line.shape) or len(line.shape) > 8:
        raise Inconclusive(f"{where} with the shape {str(line.shape)[:80]}")
    if line.placement is None or line.placement.offset is None:
        return
    offset, local = line.placement.offset, line.placement.local_shape
    fits = len(offset) == len(local) == len(line.shape)
    if not fits or any(
        start < 0 or length < 0 or (length and start + length > whole)
        for start, length, whole in zip(offset, local, line.shape, strict=True)
    ):
        raise Inconclusive(f"{where} at {list(offset)} with {list(local)}, outside of {list(line.shape)}")


def _tensors(run: RunFolder, folder: str, moment: str) -> dict[str, Tensor]:
    """The local tensors that a rank wrote whole at a moment, from ``<moment>-000.safetensors`` on."""
    found: dict[str, Tensor] = {}
    for name in run.files(f"{folder}/{moment}-"):
        if not name.endswith(".safetensors"):
            continue
        path = run.verified(name)
        for entry in _header(run, path, name).entries.values():
            if entry.name in found:
                raise Inconclusive(f"run {run.job.run_id}: {name} holds {entry.name[:200]} a second time")
            source = FileSource(path, entry.begin)
            found[entry.name] = Tensor(entry.name, entry.dtype, entry.shape, source, name)
    return found


def _header(run: RunFolder, path: Path, name: str) -> Header:
    try:
        header = read_header(path)
    except Unreadable as error:
        raise Inconclusive(f"run {run.job.run_id}: {error}") from error
    if header.metadata.get("format") != TENSORS_FORMAT:
        raise Inconclusive(f"run {run.job.run_id}: {name} is not of the format {TENSORS_FORMAT}")
    return header


def _with_values(
    run: RunFolder, entry: Recorded, whole: Mapping[str, Tensor], others: Mapping[str, Recorded]
) -> Recorded:
    """The record with its values; those of a tied tensor lie under the first name with its storage."""
    first = entry.line.same_as
    tensor = whole.get(entry.line.name)
    if tensor is None and first is not None and first in others:
        same = others[first]
        if (same.local_shape, same.line.dtype) == (entry.local_shape, entry.line.dtype):
            tensor = whole.get(first)
    if tensor is None or entry.dtype not in FORMATS:  # written as bytes, which no reader here decodes
        return entry
    if (tensor.shape, tensor.dtype) != (entry.local_shape, entry.dtype):
        raise Inconclusive(
            f"run {run.job.run_id}: {entry.line.name[:200]} is {tensor.dtype} {list(tensor.shape)} in"
            f" {tensor.file}, and {entry.dtype} {list(entry.local_shape)} in model.jsonl"
        )
    return replace(entry, values=tensor)
