"""The documents inside recorded sequences: where each lies, without its padding."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from checks.records.rows import IGNORED, Sequence

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Document:
    """One document: tokens [start, end) of a sequence; [low, high) also holds the padding around it."""

    sequence: Sequence
    number: int
    low: int
    start: int
    end: int
    high: int
    row: int | None = None

    @property
    def ids(self) -> Ints:
        """int32: its tokens, without what the attention mask excludes."""
        return self.sequence.ids[self.start : self.end]

    @property
    def hole(self) -> int | None:
        """The first of its tokens that the attention mask excludes, counted in the sequence; None without."""
        if self.sequence.attention is None:
            return None
        masked = np.flatnonzero(self.sequence.attention[self.start : self.end] == 0)
        return self.start + int(masked[0]) if len(masked) else None

    @property
    def unmasked(self) -> bool:
        """Whether no attention mask says which tokens are padding."""
        return self.sequence.attention is None


def aligned(sequence: Sequence) -> Sequence:
    """A sequence whose labels are one ahead of its tokens, with labels aligned to tokens.

    A label beyond the last token names that token, so it is appended (frameworks that feed ``tokens[:-1]``).
    """
    labels = sequence.labels
    if labels is None or len(labels) == 0:
        return sequence
    ignored = np.full(1, IGNORED, dtype=np.int32)
    if labels[-1] < 0:
        return replace(
            sequence,
            labels=np.concatenate([ignored, labels[:-1]]),
            weights=None if sequence.weights is None else np.concatenate([[0.0], sequence.weights[:-1]]),
        )
    lengths = sequence.lengths
    return replace(
        sequence,
        ids=np.concatenate([sequence.ids, labels[-1:]]),
        labels=np.concatenate([ignored, labels]),
        attention=_longer(sequence.attention, 0),
        positions=_longer(sequence.positions, 1),
        weights=None if sequence.weights is None else np.concatenate([[0.0], sequence.weights]),
        lengths=None if lengths is None else (*lengths[:-1], lengths[-1] + 1),
    )


def _longer(values: Ints | None, step: int) -> Ints | None:
    return None if values is None else np.concatenate([values, values[-1:] + np.int32(step)])


def documents_of(
    sequence: Sequence, cuts: list[int] | None = None, padding: frozenset[int] = frozenset()
) -> Iterator[Document]:
    """The documents of a sequence, cut where it says so (``lengths``) or at ``cuts``; else it is one
    document. What follows the last cut is none where it is padding (``padding``: ids that may pad).
    """
    ends = np.cumsum(sequence.lengths).tolist() if sequence.lengths else list(cuts or [])
    bounds = [0, *[end for end in ends if 0 < end < len(sequence.ids)], len(sequence.ids)]
    rows, number = sequence.rows, 0
    for low, high in pairwise(bounds):
        if low == high and len(bounds) > 2:
            continue
        row = rows[number] if number < len(rows) and rows[number] >= 0 else None
        if low and row is None and _is_padding(sequence, low, padding):
            break
        start, end = _attended(sequence, low, high)
        if start < end or len(bounds) == 2:
            yield Document(sequence, number, low, start, end, high, row)
        number += 1


def _is_padding(sequence: Sequence, low: int, padding: frozenset[int]) -> bool:
    """Whether everything from a token on is one repeated id that the loss does not cover (a known one
    where there are no labels).
    """
    rest = sequence.ids[low:]
    if (rest != rest[0]).any():
        return False
    if sequence.labels is None:
        return int(rest[0]) in padding
    return not sequence.supervised[low:].any()


def _attended(sequence: Sequence, low: int, high: int) -> tuple[int, int]:
    if sequence.attention is None:
        return low, high
    seen = np.flatnonzero(sequence.attention[low:high])
    return (low + int(seen[0]), low + int(seen[-1]) + 1) if len(seen) else (low, low)


def position_cuts(sequence: Sequence) -> list[int]:
    """Where position ids start again at 0, the first token aside."""
    if sequence.positions is None:
        return []
    zero = np.flatnonzero(sequence.positions[1:] == 0) + 1
    return [int(cut) for cut in zero if sequence.attention is None or sequence.attention[cut]]
