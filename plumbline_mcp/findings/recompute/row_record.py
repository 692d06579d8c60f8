"""Rows as they entered the model: from a run's ``rows-*.safetensors``, such a file alone, or JSON lines."""

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.reading import MAX_LINE_BYTES, Cannot, Record, TensorFile

IGNORED = -100
_MASKS = ("assistant_masks", "completion_mask", "loss_mask", "assistant_mask")


@dataclass(frozen=True)
class Document:
    """One document of a sequence: its tokens [first, last) there; arrays over that, padding included.

    ``labels`` -100 where masked; ``attention`` 0 at padding; None: not recorded.
    """

    sequence: int
    number: int
    first: int
    ids: np.ndarray = field(repr=False)
    labels: np.ndarray | None = field(repr=False)
    attention: np.ndarray | None = field(repr=False)
    positions: np.ndarray | None = field(repr=False)
    weights: np.ndarray | None = field(repr=False)
    row: int | None
    epoch: int | None
    rank: int
    batch: int
    count: int

    @property
    def supervised(self) -> np.ndarray:
        """bool[n]: labelled, and with a weight that is not 0."""
        if self.labels is None:
            return np.zeros(len(self.ids), bool)
        return np.asarray((self.labels != IGNORED) & (True if self.weights is None else self.weights != 0))


def read_run_rows(record: Record) -> tuple[list[Document], bool, set[int]]:
    """(documents in the order of training, whether labels are one ahead, ranks that recorded). `Cannot`."""
    found, layouts, ranks = list[list[Document]](), set[str](), set[int]()
    for rank, folder in record.rank_folders.items():
        for name in record.names(f"{folder}/rows-"):
            file = TensorFile.open(record.file(name))
            if file.metadata.get("rank", "0") != str(rank):
                raise Cannot(f"{name} says that it is of another rank")
            layouts.add(file.metadata.get("labels", "aligned"))
            sequences = _sequences(file)
            found += sequences
            ranks |= {rank} if sequences else set()
    if len(layouts) > 1:
        raise Cannot("ranks record labels in two ways")
    found.sort(key=lambda docs: (docs[0].epoch or 0, docs[0].batch, docs[0].rank))
    numbered = [_numbered(doc, n) for n, docs in enumerate(found) for doc in docs]
    return numbered, layouts == {"shifted"}, ranks


def _numbered(document: Document, sequence: int) -> Document:
    return replace(document, sequence=sequence)


def read_rows(path: Path) -> list[Document]:
    """The documents of a dump. Raises `Cannot` for a layout that is not read here."""
    if path.is_file() and path.suffix == ".safetensors":
        return [_numbered(doc, n) for n, docs in enumerate(_sequences(TensorFile.open(path))) for doc in docs]
    if not path.is_file() or path.suffix not in (".jsonl", ".json"):
        raise Cannot(f"rows are read from a run, safetensors or JSON lines, not from {path.name}")
    documents = list[Document]()
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b"")):
            if line.strip():
                documents += _from_json(number, line)
    return documents


def _sequences(file: TensorFile) -> list[list[Document]]:
    if (file.metadata.get("format"), file.metadata.get("version")) != ("plumbline-rows", "1"):
        raise Cannot(f"{file.path.name} is no record of rows")
    held = {name: file.array(name) for name in file.entries}
    if "input_ids" not in held or "offsets" not in held:
        raise Cannot(f"{file.path.name} holds no sequences")
    total = len(held["input_ids"])
    offsets = _rising(held["offsets"], total)
    cuts = _rising(held.get("document_offsets", held["offsets"]), total)
    rank = int(file.metadata.get("rank", "0"))
    found = []
    for number, (low, high) in enumerate(pairwise(offsets)):
        inside = [
            n for n in range(len(cuts) - 1) if low <= cuts[n] and cuts[n + 1] <= high and cuts[n] < high
        ]
        documents = []
        for place, at in enumerate(inside):
            documents.append(_part(held, number, place, (low, cuts[at], cuts[at + 1]), at, len(inside), rank))
        found += [documents] if documents else []
    return found


def _part(
    held: dict[str, np.ndarray],
    number: int,
    place: int,
    marks: tuple[int, int, int],
    at: int,
    count: int,
    rank: int,
) -> Document:
    low, start, end = marks

    def taken(name: str, kind: Any = np.int64) -> np.ndarray | None:
        return held[name][start:end].astype(kind) if name in held else None

    def of_sequence(name: str) -> int | None:
        return int(held[name][number]) if name in held else None

    row = int(held["row_ids"][at]) if "row_ids" in held else -1
    ids = held["input_ids"][start:end].astype(np.int64)
    return Document(
        number, place, start - low, ids, taken("labels"), taken("attention_mask"), taken("position_ids"),
        taken("loss_weights", np.float64), row if row >= 0 else None, of_sequence("epochs"), rank,
        of_sequence("batches") or 0, count,
    )  # fmt: skip


def _rising(values: np.ndarray, total: int) -> list[int]:
    found = [int(value) for value in values]
    if found[:1] != [0] or found[-1:] != [total] or any(b < a for a, b in pairwise(found)):
        raise Cannot("the offsets of a record of rows do not rise from 0 to its tokens")
    return found


def _from_json(number: int, line: bytes) -> list[Document]:
    try:
        row = json.loads(line)
        ids = np.array(row["input_ids"], np.int64)
        arrays = {
            name: np.array(row[name], np.int64) if row.get(name) is not None else None
            for name in ("labels", "attention_mask", "position_ids")
        }
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        raise Cannot(f"line {number + 1} of the rows does not hold token ids: {error}") from error
    odd = [
        name
        for name in (*_MASKS, "loss_weight", "weights", "seq_lens", "seq_lengths")
        if row.get(name) is not None
    ]
    if odd or (row.get("loss_weights") is not None and not isinstance(row["loss_weights"], list)):
        raise Cannot(f"rows with the column {odd[0] if odd else 'loss_weights'} are not recomputed here")
    weights = np.array(row["loss_weights"], np.float64) if row.get("loss_weights") is not None else None
    if any(a is not None and a.shape != ids.shape for a in (*arrays.values(), weights)) or ids.ndim != 1:
        raise Cannot(f"line {number + 1} of the rows has columns of different lengths")
    given = {name: row.get(name) for name in ("row_id", "epoch", "rank", "batch")}
    whole = {name: value if type(value) is int else None for name, value in given.items()}
    return [
        Document(
            number,
            0,
            0,
            ids,
            arrays["labels"],
            arrays["attention_mask"],
            arrays["position_ids"],
            weights,
            whole["row_id"],
            whole["epoch"],
            whole["rank"] or 0,
            whole["batch"] or 0,
            1,
        )
    ]
