"""Writes rows as they enter the model: packed token arrays with offsets, a file per epoch and size."""

import array
from pathlib import Path

from plumbline_recorder.safetensors_writer import write_safetensors

FLUSH_TOKENS = 4 * 1024 * 1024
"""A file is closed after this many tokens: about 36 MB of ids, labels and mask."""

_PER_TOKEN = {"attention_mask": "B", "position_ids": "i", "loss_weights": "f"}


class RowsWriter:
    """Collects sequences and writes ``rows-<epoch>-<nnn>.safetensors``. Use as a context manager."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, labels: str = "aligned") -> None:
        """Write into ``folder``; ``labels`` is aligned (with the ids) or shifted (already one ahead)."""
        self._folder = folder
        self._metadata = {
            "format": "plumbline-rows",
            "version": "1",
            "rank": str(rank),
            "world_size": str(world_size),
            "labels": labels,
        }
        self._files: "dict[int, int]" = {}
        self._epoch: "int | None" = None
        self.sequences = 0
        self._clear()
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "RowsWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._flush()

    def add(
        self,
        epoch: int,
        batch: int,
        input_ids: "list[int]",
        labels: "list[int]",
        row_ids: "list[int]",
        document_ends: "list[int] | None" = None,
        **per_token: "list[int] | list[float]",
    ) -> None:
        """Add one sequence, padding included.

        ``row_ids`` names the documents in it by their index in the workload (-1: unknown);
        ``document_ends`` says where each but the last ends, by default there is one document.
        ``per_token`` is attention_mask, position_ids or loss_weights, in every sequence or in none.
        """
        if epoch != self._epoch or len(self._ids) >= FLUSH_TOKENS:
            self._flush()
            self._epoch = epoch
            self._extra = {name: array.array(_PER_TOKEN[name]) for name in per_token}
        lengths = {len(input_ids), len(labels), *(len(values) for values in per_token.values())}
        if len(lengths) != 1 or set(per_token) != set(self._extra):
            raise ValueError("a sequence whose arrays differ in length or in kind: %s" % sorted(per_token))
        ends = document_ends or []
        if len(ends) + 1 != len(row_ids):
            raise ValueError("%d row ids for %d documents" % (len(row_ids), len(ends) + 1))
        start = len(self._ids)
        self._ids.extend(input_ids)
        self._labels.extend(labels)
        for name, values in per_token.items():
            self._extra[name].extend(values)
        self._offsets.append(len(self._ids))
        self._documents.extend([start + end for end in ends] + [len(self._ids)])
        self._row_ids.extend(row_ids)
        self._epochs.append(epoch)
        self._batches.append(batch)
        self.sequences += 1

    def _clear(self) -> None:
        self._ids, self._labels = array.array("i"), array.array("i")
        self._offsets, self._documents = array.array("q", [0]), array.array("q", [0])
        self._row_ids, self._epochs, self._batches = array.array("i"), array.array("i"), array.array("i")
        self._extra: "dict[str, array.array]" = {}

    def _flush(self) -> None:
        if not self._epochs:
            return
        number = self._files.get(self._epochs[0], 0)
        self._files[self._epochs[0]] = number + 1
        name = "rows-%d-%03d.safetensors" % (self._epochs[0], number)
        tensors = {
            "input_ids": self._ids,
            "labels": self._labels,
            **self._extra,
            "offsets": self._offsets,
            "document_offsets": self._documents,
            "row_ids": self._row_ids,
            "epochs": self._epochs,
            "batches": self._batches,
        }
        # 8-byte tensors first: every tensor then starts at a multiple of its item size.
        ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])))
        write_safetensors(self._folder / name, ordered, self._metadata)
        self._clear()
