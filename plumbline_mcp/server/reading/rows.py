"""Reads rows of a dump or a run in a worker and decodes them: spans of supervised and unsupervised text."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from approvals.visible import visible
from checks.check import Progress
from checks.errors import BadInput, NotEvaluated
from checks.records.rows import IGNORED, Dump, Sequence, read_dump
from checks.records.run_rows import read_run_rows
from checks.records.runs import RunFolder, is_run_folder
from checks.references.tokenization import ReleaseTokenizer
from plumbline_mcp.server.reading.sealed import files_below, sealed_run_of, verify_files

TEXT_LIMIT = 1500
"""Characters shown of one span."""
SPANS = 60
"""Spans shown of one row; a window of tokens shows the rest."""


def read_rows(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """``payload``: path, run, manifest_sha256, model (None: a run's own), first, count, token, window.

    Returns ``total`` sequences, the ``kind`` of dump and the chosen ``rows``.
    Raises `BadInput`, `NotEvaluated`, `Inconclusive`.
    """
    path, run = Path(payload["path"]), sealed_run_of(payload)
    if run is not None and not is_run_folder(path):  # any folder may be named: no other is walked
        verify_files(run, files_below(path))
    dump = open_rows(path)
    model = Path(payload["model"]) if payload["model"] else _model_of(path)
    tokenizer = ReleaseTokenizer.load(model) if model else None
    first, count = payload["first"], payload["count"]
    if first >= len(dump.sequences):
        raise BadInput(
            f"there is no sequence {first}: the dump holds {len(dump.sequences)}",
            f"use first from 0 to {len(dump.sequences) - 1}",
        )
    chosen = dump.sequences[first : first + count]
    return {
        "total": len(dump.sequences),
        "kind": dump.kind,
        "rows": [_row(sequence, tokenizer, payload["token"], payload["window"]) for sequence in chosen],
    }


def _model_of(path: Path) -> Path | None:
    """The release that a run was started with, while its tokenizer is still there."""
    if not is_run_folder(path):
        return None
    model = Path(RunFolder.open(path).job.inputs.get("model", ""))
    return model if (model / "tokenizer.json").is_file() else None


def open_rows(path: Path) -> Dump:
    """A dump in any format, or every recorded sequence of a sealed run; numbered as a data verdict does."""
    if not is_run_folder(path):
        return read_dump(path)
    run = RunFolder.open(path)
    dump = read_run_rows(run).dump
    if not dump.sequences:
        raise NotEvaluated(
            f"run {run.job.run_id} recorded no rows", "run the rows procedure of the framework's pack"
        )
    return dump


def _row(
    sequence: Sequence, tokenizer: ReleaseTokenizer | None, token: int | None, window: int
) -> dict[str, Any]:
    supervised = None if sequence.labels is None else sequence.labels != IGNORED
    spans = _spans(len(sequence.ids), supervised)
    return {
        "sequence": sequence.index,
        "workload_rows": list(sequence.rows)[:50],
        "epoch": sequence.epoch,
        "rank": sequence.rank,
        "batch": sequence.batch,
        "tokens": len(sequence.ids),
        "supervised": None if supervised is None else int(np.count_nonzero(supervised)),
        "documents": None if sequence.lengths is None else len(sequence.lengths),
        "spans_total": len(spans),
        "spans": [_span(sequence, tokenizer, *span) for span in spans[:SPANS]],
        "window": _window(sequence, tokenizer, token, window),
    }


def _spans(length: int, supervised: Any) -> list[tuple[int, int, bool | None]]:
    """Runs of tokens that are all supervised or all not: (first, behind the last, supervised)."""
    if supervised is None:
        return [(0, length, None)] if length else []
    changes = [0, *(np.flatnonzero(np.diff(supervised)) + 1).tolist(), length]
    return [(a, b, bool(supervised[a])) for a, b in pairwise(changes) if b > a]


def _span(
    sequence: Sequence, tokenizer: ReleaseTokenizer | None, first: int, end: int, supervised: bool | None
) -> dict[str, Any]:
    return {
        "first": first,
        "end": end,
        "supervised": supervised,
        "untrusted_text": _decoded(tokenizer, sequence.ids[first:end].tolist(), TEXT_LIMIT),
    }


def _window(
    sequence: Sequence, tokenizer: ReleaseTokenizer | None, token: int | None, window: int
) -> list[dict[str, Any]]:
    """Each token around ``token``: its id, its label and its text."""
    if token is None:
        return []
    if token >= len(sequence.ids):
        raise BadInput(
            f"sequence {sequence.index} has no token {token}: it has {len(sequence.ids)}",
            f"use token from 0 to {len(sequence.ids) - 1}",
        )
    around = range(max(0, token - window), min(len(sequence.ids), token + window + 1))
    return [
        {
            "token": index,
            "id": int(sequence.ids[index]),
            "label": None if sequence.labels is None else int(sequence.labels[index]),
            "untrusted_text": _decoded(tokenizer, [int(sequence.ids[index])], 60),
        }
        for index in around
    ]


def _decoded(tokenizer: ReleaseTokenizer | None, ids: list[int], limit: int) -> str | None:
    if tokenizer is None:
        return None
    known = [number for number in ids[: 4 * limit] if number >= 0]
    text: str = tokenizer.tokenizer.decode(known, skip_special_tokens=False)
    return visible(text, limit)
