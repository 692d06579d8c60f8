"""Rows as they entered the model: one `Document` each, read from a dump or from a run folder's records.

Formats: JSONL, the run record's safetensors (layout below), a data set that Hugging Face `datasets` saved,
and a run folder. Fields: ``input_ids``, ``labels`` (-100: not supervised), optional ``attention_mask``,
``position_ids``, ``loss_weights``, ``row_id`` (index in the workload), ``epoch``, ``rank``, ``batch``,
``seq_lens`` (documents packed into one sequence, in order) with ``row_ids``. Loss masks take labels away, as
trainers apply them: a token is labelled where no mask is 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.errors import BadInput, NotEvaluated
from checks.records.workload import read_json_lines
from checks.rules import MAX_ROWS, MAX_TOKENS
from checks.verdict import Evidence

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
IGNORED = -100
"""The label of a token that the loss does not cover (torch's ``ignore_index``)."""

PER_TOKEN = ("labels", "attention_mask", "position_ids")
"""Optional fields with one integer for each token of ``input_ids``."""
LOSS_MASKS = ("assistant_masks", "completion_mask", "loss_mask", "assistant_mask")
"""Columns that say with 0 and 1 what the loss covers, beside labels or in their place."""
WEIGHTS = ("loss_weights", "loss_weight", "weights")
"""Columns with the loss weight of each token, or one of the whole row."""
LENGTHS = ("seq_lens", "seq_lengths")
"""Columns with the lengths of the documents in a packed sequence."""
ROW_INDEX = ("row_id", "epoch", "rank", "batch")
COLUMNS = ("input_ids", "row_ids", *PER_TOKEN, *LOSS_MASKS, *WEIGHTS, *LENGTHS, *ROW_INDEX)
"""Every column that is read."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence as it entered the model. Arrays: int32[T]; ``weights`` float32[T].

    ``lengths`` cuts it into documents (None: not said); ``rows`` names their workload rows (-1: not said).
    """

    index: int
    ids: Ints
    labels: Ints | None = None
    attention: Ints | None = None
    positions: Ints | None = None
    weights: Floats | None = None
    lengths: tuple[int, ...] | None = None
    rows: tuple[int, ...] = ()
    epoch: int | None = None
    rank: int = 0
    batch: int | None = None

    @property
    def supervised(self) -> npt.NDArray[np.bool_]:
        """bool[T]: the tokens that the loss covers: labelled with a token id, with a weight that is not 0."""
        if self.labels is None:
            return np.zeros(len(self.ids), dtype=bool)
        labelled: npt.NDArray[np.bool_] = self.labels >= 0
        return labelled if self.weights is None else labelled & (self.weights != 0)


@dataclass(frozen=True)
class Dump:
    """All sequences of a dump with what it is and where it came from.

    ``masked`` names the columns that make the labels where a loss mask does, ``unread`` columns that say
    nothing to this reader.
    """

    sequences: tuple[Sequence, ...]
    kind: str
    evidence: tuple[Evidence, ...] = ()
    masked: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class Limits:
    """Counts what a reader holds and refuses more than the rules allow."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows, self.tokens = path, 0, 0

    def add(self, tokens: int) -> None:
        """Count one sequence. Raises `BadInput`."""
        self.rows, self.tokens = self.rows + 1, self.tokens + tokens
        if self.rows > MAX_ROWS or self.tokens > MAX_TOKENS:
            raise BadInput(
                f"{self.path} holds more than {MAX_ROWS} rows or {MAX_TOKENS} tokens", "check it in parts"
            )


class Gathered:
    """Rows as they are read from named columns, and what is noted of the columns."""

    def __init__(self, path: Path) -> None:
        self.sequences: list[Sequence] = []
        self._limits = Limits(path)
        self._names: dict[str, None] = {}

    def add(self, row: Mapping[str, Any], where: str, names: Iterable[str] = ()) -> None:
        """Read one row; ``names`` are its columns, where ``row`` holds only some. Raises `BadInput`."""
        sequence = from_mapping(len(self.sequences), row, where)
        self._limits.add(len(sequence.ids))
        self.sequences.append(sequence)
        self._names.update(dict.fromkeys(name for name in row if row[name] is not None))
        self._names.update(dict.fromkeys(names))

    def dump(self, kind: str) -> Dump:
        """All rows."""
        masks = tuple(name for name in LOSS_MASKS if name in self._names)
        masked = ("labels", *masks) if masks and "labels" in self._names else masks
        unread = tuple(name for name in self._names if name not in COLUMNS)
        return Dump(tuple(self.sequences), kind, masked=masked, unread=unread)


def read_jsonl(path: Path) -> Dump:
    """A dump with one JSON object for each sequence. Raises `BadInput` at the line that does not fit."""
    gathered = Gathered(path)
    for where, row in read_json_lines(path):
        if not isinstance(row, dict) or "input_ids" not in row:
            columns = ", ".join(list(row)[:8]) if isinstance(row, dict) else type(row).__name__
            raise BadInput(
                f"{path}, {where} has no input_ids ({columns})", "write input_ids and labels in each row"
            )
        gathered.add(row, f"{path}, {where}")
    return gathered.dump("JSONL")


def from_mapping(index: int, row: Mapping[str, Any], where: str) -> Sequence:
    """A sequence from named values. Raises `BadInput`."""
    ids = integers(row["input_ids"], f"{where}, input_ids")
    fields = {
        name: per_token(row[name], len(ids), f"{where}, {name}")
        for name in PER_TOKEN
        if row.get(name) is not None
    }
    lengths = next(
        (_lengths(row[name], len(ids), where) for name in LENGTHS if row.get(name) is not None), None
    )
    named = {name: _index(row.get(name), f"{where}, {name}") for name in ROW_INDEX}
    rows = integers(row["row_ids"], f"{where}, row_ids").tolist() if row.get("row_ids") is not None else []
    if not rows and named["row_id"] is not None:
        rows = [named["row_id"]]
    return Sequence(
        index,
        ids,
        _masked_labels(row, ids, fields.get("labels"), where),
        fields.get("attention_mask"),
        fields.get("position_ids"),
        _weights(row, len(ids), where),
        lengths,
        tuple(rows),
        named["epoch"],
        named["rank"] or 0,
        named["batch"],
    )


def _masked_labels(row: Mapping[str, Any], ids: Ints, labels: Ints | None, where: str) -> Ints | None:
    """The labels (without any, the ids) where every loss mask of the row is on; None without either."""
    for name in LOSS_MASKS:
        if row.get(name) is not None:
            value = row[name]
            on = (
                _numbers(value, len(ids), f"{where}, {name}") != 0
                if _is_fractional(value)
                else per_token(value, len(ids), f"{where}, {name}") != 0
            )
            labels = np.where(on, ids if labels is None else labels, np.int32(IGNORED))
    return None if labels is None else labels.astype(np.int32, copy=False)


def _weights(row: Mapping[str, Any], length: int, where: str) -> Floats | None:
    """float32[length]: the product of the weight columns, loss masks of fractions with them; None without."""
    named = [*WEIGHTS, *(name for name in LOSS_MASKS if _is_fractional(row.get(name)))]
    found = [(row[name], f"{where}, {name}") for name in named if row.get(name) is not None]
    weights = np.ones(length, dtype=np.float32)
    for value, name in found:
        weights = weights * _numbers(value, length, name)
    return weights if found else None


def _is_fractional(mask: Any) -> bool:
    """Whether a loss mask is written in floating point: then it is also each token's weight."""
    if isinstance(mask, np.ndarray):
        return bool(mask.dtype.kind == "f")
    return isinstance(mask, list) and any(type(each) is float for each in mask)


def _numbers(value: Any, length: int, where: str) -> Floats:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{where} is no flat list of numbers: {error}") from error
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.float32)
    if array.dtype.kind not in "iuf" or array.ndim > 1:
        raise BadInput(f"{where} is neither a number nor a flat list of numbers")
    if array.ndim == 1 and len(array) != length:
        raise BadInput(f"{where} has {len(array)} values for {length} tokens", "write one for each token")
    with np.errstate(over="ignore"):  # what is too large for a weight reads as infinite and is told as such
        return np.broadcast_to(array, length).astype(np.float32)


def integers(value: Any, where: str) -> Ints:
    """int32[n] from a flat list of whole numbers. Raises `BadInput` with the first value that is none."""
    if isinstance(value, list) and bool in set(map(type, value)):
        raise BadInput(f"{where} is no flat list of whole numbers ({_odd(value)})")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{where} is no flat list of numbers: {error}") from error
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadInput(f"{where} is no flat list of whole numbers ({_odd(value)})")
    low, high = int(array.min()), int(array.max())
    if low < -(2**31) or high >= 2**31:
        raise BadInput(f"{where} holds {low if low < -(2**31) else high}, which is no token id (32 bits)")
    return array.astype(np.int32, copy=False)


def _odd(value: Any) -> str:
    if not isinstance(value, list):
        return f"it is {type(value).__name__}"
    for place, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int) or abs(item) >= 2**63:
            return f"item {place} is {str(item)[:40]!r}"
    return "nested"


def per_token(value: Any, length: int, where: str) -> Ints:
    """int32[length]. Raises `BadInput` when the lengths differ."""
    array = integers(value, where)
    if len(array) != length:
        raise BadInput(f"{where} has {len(array)} values for {length} tokens", "write one for each token")
    return array


def _lengths(value: Any, length: int, where: str) -> tuple[int, ...] | None:
    """The documents' lengths, those of 0 tokens aside; None where none is left: then nothing is said."""
    lengths = integers(value, f"{where}, seq_lens")
    if (lengths < 0).any() or int(lengths.sum(dtype=np.int64)) > length:
        raise BadInput(f"{where}, seq_lens add up to {lengths.sum()} for {length} tokens")
    return tuple(each for each in lengths.tolist() if each) or None


def _index(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or abs(int(value)) >= 2**31:
        raise BadInput(f"{where} is {str(value)[:40]!r}, no whole number")
    return int(value)


def read_dump(path: Path) -> Dump:
    """A dump in any of the formats (a run folder aside). Raises `BadInput`, `NotEvaluated` (no rows)."""
    from checks.records.rows_arrow import is_saved_dataset, read_saved_dataset
    from checks.records.rows_safetensors import read_safetensors

    if not path.exists():
        raise BadInput(
            f"the rows {path} do not exist", "name a JSONL or safetensors file, a saved data set or a run"
        )
    if path.is_dir():
        if not is_saved_dataset(path):
            raise BadInput(
                f"{path} is neither a run folder nor a saved Hugging Face data set (no state.json)",
                "name the folder that save_to_disk wrote, or a JSONL or safetensors file",
            )
        dump = read_saved_dataset(path)
    elif not path.is_file():  # a pipe would be waited for, a device never ends
        raise BadInput(f"the rows {path} are no regular file", "write them to a file first")
    elif path.suffix == ".safetensors":
        dump = read_safetensors(path)
    else:
        dump = read_jsonl(path)
    if not dump.sequences:
        raise NotEvaluated(f"{path} holds 0 rows", "dump the rows that enter the model")
    return dump
