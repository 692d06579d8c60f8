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
_WEIGHTS = ("loss_weights", "loss_weight", "weights")
_LENGTHS = ("seq_lens", "seq_lengths")


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
        return np.asarray((self.labels >= 0) & (True if self.weights is None else self.weights != 0))


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
            part = _part(held, number, place, (low, cuts[at], cuts[at + 1]), at, len(inside), rank)
            if not (place and part.row is None and _only_padding(part)):
                documents.append(part)
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


def _rising(values: Any, total: int) -> list[int]:
    found = [int(value) for value in values]
    if found[:1] != [0] or found[-1:] != [total] or any(b < a for a, b in pairwise(found)):
        raise Cannot("the offsets of a record of rows do not rise from 0 to its tokens")
    return found


def _from_json(number: int, line: bytes) -> list[Document]:
    where = f"line {number + 1} of the rows"
    try:
        row = json.loads(line)
        ids = np.array(row["input_ids"], np.int64)
        arrays = {
            name: np.array(row[name], np.int64) if row.get(name) is not None else None
            for name in ("labels", "attention_mask", "position_ids", *_MASKS)
        }
        found = [np.array(row[name], np.float64) for name in _WEIGHTS if row.get(name) is not None]
        lengths = next((row[name] for name in _LENGTHS if row.get(name) is not None), [len(ids)])
        ends = _rising([0, *np.cumsum(np.array(lengths, np.int64)).tolist()], len(ids))
        rows = row.get("row_ids") or ([row["row_id"]] if row.get("row_id") is not None else [])
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        raise Cannot(f"{where} does not hold token ids: {error}") from error
    if any(a is not None and a.shape != ids.shape for a in arrays.values()) or ids.ndim != 1:
        raise Cannot(f"{where} has columns of different lengths")
    if any(type(each) is float and each not in (0, 1) for name in _MASKS for each in row.get(name) or ()):
        raise Cannot(f"{where} has a loss mask of fractions, which is not recomputed here")
    weights = _product(found, len(ids), where)
    labels = arrays["labels"]
    for mask in (arrays[name] for name in _MASKS):
        if mask is not None:
            labels = np.where(mask != 0, ids if labels is None else labels, IGNORED)
    whole = {
        name: row.get(name) if type(row.get(name)) is int else None for name in ("epoch", "rank", "batch")
    }
    parts = (labels, arrays["attention_mask"], arrays["position_ids"], weights)
    documents = []
    for place, (low, high) in enumerate(pairwise(ends)):
        cut = [None if each is None else each[low:high] for each in parts]
        owner = rows[place] if place < len(rows) and type(rows[place]) is int and rows[place] >= 0 else None
        document = Document(
            number, place, low, ids[low:high], cut[0], cut[1], cut[2], cut[3], owner, whole["epoch"],
            whole["rank"] or 0, whole["batch"] or 0, len(ends) - 1,
        )  # fmt: skip
        if not (place and owner is None and _only_padding(document)):
            documents.append(document)
    return documents


def _product(found: list[np.ndarray], size: int, where: str) -> np.ndarray | None:
    """The product of the weight columns, one number a token; None without one."""
    if any(each.ndim > 1 or (each.ndim and len(each) != size) for each in found):
        raise Cannot(f"{where} has weights of another length")
    weights = np.ones(size)
    for each in found:
        weights = weights * each
    return weights if found else None


def _only_padding(document: Document) -> bool:
    """Whether a packed sequence ends in one repeated id that no label covers."""
    ids = document.ids
    return not len(ids) or bool((ids == ids[0]).all() and not document.supervised.any())
