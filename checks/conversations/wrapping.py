"""Puts rows together again that packing cut across sequences ("wrapped": one stream, sliced at a length).

The stream that the recipe defines is the workload's rows one after the other. Each recorded sequence is
looked up in it by its first tokens, so that their order over ranks and shuffling does not matter; the
sequences in stream order are then cut where rows stand whole. Where rows were shuffled before they were
packed few sequences lie in the workload's stream: the recorded order is then the stream's.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from checks.conversations.alignment import Terms
from checks.conversations.streams import Located, Stream, locate
from checks.errors import Inconclusive
from checks.records.documents import Document
from checks.records.rows import Sequence
from checks.references.expected import ExpectedRow
from checks.references.spans import Stop

Ints = npt.NDArray[np.int32]
_RESYNCS = 256
"""Places of an epoch at which a row is searched for that does not follow the one before."""
_NEAR_LOOKED_AT = 1000
"""Sequences looked at for rows in another order than the workload's."""
_AHEAD = 16
"""Rows looked for behind one that is not there."""


@dataclass(frozen=True, slots=True)
class Unwrapped(Sequence):
    """One row out of the sequences that hold it; ``index`` counts rows, as put together.

    ``pieces``: (token of the row, recorded sequence, token of that sequence) at which each piece begins.
    """

    pieces: tuple[tuple[int, int, int], ...] = ()

    @property
    def starts(self) -> tuple[int, ...]:
        """The tokens of the row at which its pieces begin."""
        return tuple(start for start, _, _ in self.pieces)

    def recorded(self, token: int) -> int:
        """The recorded sequence that holds a token."""
        held = [sequence for start, sequence, _ in self.pieces if start <= token]
        return held[-1] if held else self.pieces[0][1]


Joining = TypeVar("Joining", bound=Unwrapped)


@dataclass(frozen=True)
class UnwrappedRows:
    """``repeated``: recorded sequences whose tokens another sequence of the epoch holds already."""

    documents: tuple[Document, ...]
    repeated: tuple[Sequence, ...]


@dataclass(frozen=True)
class _Chunk:
    """A recorded sequence without its padding. ``overlap``: its last token is the next one's first."""

    sequence: Sequence
    length: int
    overlap: int

    @property
    def ids(self) -> Ints:
        return self.sequence.ids[: self.length - self.overlap]


@dataclass(frozen=True)
class _Assembled:
    """All tokens of an epoch in stream order. ``origins``: int32[T, 2], sequence and token of each."""

    ids: Ints
    origins: Ints
    chunks: dict[int, Sequence] = field(repr=False)


def unwrap(
    sequences: tuple[Sequence, ...],
    aligned: tuple[Sequence, ...],
    rows: list[ExpectedRow],
    terms: Terms,
    shuffled: bool,
) -> UnwrappedRows:
    """The rows of every epoch. ``aligned``: the sequences with labels at their own tokens.

    Raises `Inconclusive` where shuffled rows and shuffled sequences leave no order to put together.
    """
    epochs: dict[int | None, list[int]] = defaultdict(list)
    for number, sequence in enumerate(sequences):
        epochs[sequence.epoch].append(number)
    streams = _streams(rows, terms)
    documents, repeated = list[Document](), list[Sequence]()
    for numbers in epochs.values():
        chunks = [_chunk(sequences[number], aligned[number], terms) for number in numbers]
        found = max((locate([chunk.ids for chunk in chunks], stream) for stream in streams), key=len)
        assembled, spans = _put_together(chunks, found)
        if not all(whole for *_, whole in spans):
            _refuse_unordered(found, shuffled and _is_packed_shuffled(chunks, found))
        documents += [
            _document(assembled, start, end, len(documents) + n) for n, (start, end, _) in enumerate(spans)
        ]
        repeated += [chunks[number].sequence for number in found.repeated]
    return UnwrappedRows(tuple(documents), tuple(repeated))


def _put_together(chunks: list[_Chunk], found: Located) -> tuple[_Assembled, list[tuple[int, int, bool]]]:
    """The sequences in stream order, and in the recorded order where more rows stand whole there."""
    orders = (found.order, tuple(n for n in range(len(chunks)) if n not in found.repeated))
    best: tuple[_Assembled, list[tuple[int, int, bool]]] | None = None
    for order in dict.fromkeys(orders):
        assembled = _assembled([_whole(chunks[number], number, found) for number in order])
        spans = list(_spans(assembled.ids, found.stream))
        if best is None or sum(whole for *_, whole in spans) > sum(whole for *_, whole in best[1]):
            best = assembled, spans
        if all(whole for *_, whole in spans):
            break
    assert best is not None  # noqa: S101 - there is at least one order
    return best


def _is_packed_shuffled(chunks: list[_Chunk], found: Located) -> bool:
    """Whether a sequence shows, at a row's end, another row than the workload's next one."""
    pairs = ((chunks[number].ids, at) for number, places in found.near.items() for at in places)
    return any(found.stream.continues_elsewhere(ids, at) for ids, at in islice(pairs, _NEAR_LOOKED_AT))


def _refuse_unordered(found: Located, packed_shuffled: bool) -> None:
    """Refuse to judge rows that are broken because their pieces were put in a wrong order."""
    if found.ambiguous or packed_shuffled:
        why = (
            "texts of the workload repeat, so sequences fit in several places"
            if found.ambiguous
            else "rows were shuffled before they were packed, and sequences are in another order than cut"
        )
        raise Inconclusive(
            f"{why}: rows that packing cut cannot be put together again",
            "give the workload in the order in which it was packed, or the sequences in theirs",
        )


def _chunk(recorded: Sequence, aligned: Sequence, terms: Terms) -> _Chunk:
    """Padding at the end: what attention leaves out, else a known pad id, where the loss covers neither."""
    length, overlap = len(aligned.ids), len(aligned.ids) - len(recorded.ids)
    if overlap:
        return _Chunk(aligned, length, overlap)
    ids, attention, supervised = aligned.ids, aligned.attention, aligned.supervised
    if attention is None:
        pads = (ids == ids[-1]) & (int(ids[-1]) in terms.padding) if length else np.zeros(0, dtype=bool)
    else:
        pads = attention == 0
    kept = np.flatnonzero(~pads | supervised)
    end = int(kept[-1]) + 1 if len(kept) else 0
    single = attention is None and end + 1 == length  # one token that may pad is as likely the text's own
    return _Chunk(aligned, length if single else end, 0)


def _whole(chunk: _Chunk, number: int, found: Located) -> _Chunk:
    """The sequence with what looks like padding and is the stream's own next tokens (pad equals eos)."""
    at = found.places.get(number)
    if at is None or chunk.overlap:
        return chunk
    length, ids, stream = chunk.length, chunk.sequence.ids, found.stream.ids
    taken = set(found.places.values())
    while length < len(ids) and at + length < len(stream) and at + length not in taken:
        if ids[length] != stream[at + length]:
            break
        length += 1
    return replace(chunk, length=length)


def _streams(rows: list[ExpectedRow], terms: Terms) -> list[Stream]:
    """The rows as the template ends them, as they end at their last stop token, and with one appended."""
    rendered = [row for row in rows if len(row.ids)]
    streams = [Stream.of([row.ids for row in rendered])]
    if any(row.padding < len(row.ids) for row in rendered):
        streams.append(Stream.of([row.ids[: row.padding] for row in rendered]))
    if any(row.turns and row.turns[-1].stop is Stop.NONE for row in rendered):
        streams += [
            Stream.of([np.append(row.ids, np.int32(stop)) for row in rendered])
            for stop in sorted(terms.stops)
        ]
    return streams


def _assembled(chunks: list[_Chunk]) -> _Assembled:
    ids, origins, last = list[Ints](), list[Ints](), None
    for chunk in chunks:
        doubled = last is not None and chunk.length and int(chunk.sequence.ids[0]) == last
        tokens = np.arange(1 if doubled else 0, chunk.length, dtype=np.int32)
        ids.append(chunk.sequence.ids[tokens])
        origins.append(np.stack([np.full_like(tokens, chunk.sequence.index), tokens], axis=1))
        last = int(chunk.sequence.ids[chunk.length - 1]) if chunk.overlap else None
    empty = np.zeros((0, 2), dtype=np.int32)
    return _Assembled(
        np.concatenate([empty[:, 0], *ids]),
        np.concatenate([empty, *origins]),
        {chunk.sequence.index: chunk.sequence for chunk in chunks},
    )


def _spans(ids: Ints, stream: Stream) -> Iterator[tuple[int, int, bool]]:
    """[start, end) of each row, and whether it stands there whole; between whole ones, what differs."""
    at, following, searches = 0, 0, 0
    while at < len(ids):
        row = stream.row_at(ids, at, following)
        start = at
        if row is None:
            start = _next_row(ids, stream, at, following) if searches < _RESYNCS else len(ids)
            if start == at + 1 < len(ids) and ids[at] == ids[start]:  # a doubled first token
                row = stream.row_at(ids, start, following)
            searches += row is None
        end = start if row is None else start + len(stream.rows[row])
        yield at, end, row is not None and start == at
        at, following = end, following if row is None else row + 1


def _next_row(ids: Ints, stream: Stream, at: int, following: int) -> int:
    """Where the next whole row begins behind a place: one of those that follow there, else any."""
    near = _row_starts(ids[: at + 2 * stream.longest], stream, at)
    for row in stream.rows[following : following + _AHEAD]:
        for start in near:
            if np.array_equal(ids[start : start + len(row)], row):
                return int(start)
    starts = _row_starts(ids, stream, at)
    whole = (int(start) for start in starts if stream.row_at(ids, int(start), following) is not None)
    return next(whole, len(ids))


def _row_starts(ids: Ints, stream: Stream, after: int) -> npt.NDArray[np.int64]:
    """Behind a place, the tokens that begin a row somewhere."""
    return np.flatnonzero(np.isin(ids[after + 1 :], stream.firsts)) + after + 1


def _document(stream: _Assembled, start: int, end: int, number: int) -> Document:
    """One row as a document of its own, with the places where its pieces were recorded."""
    origins = stream.origins[start:end]
    breaks = [0, *(np.flatnonzero(np.diff(origins[:, 0]) != 0) + 1).tolist(), end - start]
    parts = [
        (stream.chunks[int(origins[low, 0])], int(origins[low, 1]), int(origins[low, 1]) + high - low)
        for low, high in pairwise(breaks)
    ]
    return Document(join(parts, number, Unwrapped), 0, 0, 0, end - start, end - start)


def join(parts: list[tuple[Sequence, int, int]], index: int, kind: type[Joining]) -> Joining:
    """One row out of [low, high) of recorded sequences, in the row's order."""

    def joined(name: str) -> npt.NDArray[Any] | None:
        values = [getattr(sequence, name) for sequence, _, _ in parts]
        if any(value is None for value in values):
            return None
        return np.concatenate([value[a:b] for value, (_, a, b) in zip(values, parts, strict=True)])

    first = parts[0][0]
    starts = accumulate((high - low for _, low, high in parts), initial=0)
    return kind(
        index=index,
        ids=np.concatenate([sequence.ids[low:high] for sequence, low, high in parts]),
        labels=joined("labels"),
        attention=joined("attention"),
        weights=joined("weights"),
        epoch=first.epoch,
        rank=first.rank,
        pieces=tuple(
            (start, sequence.index, low) for start, (sequence, low, _) in zip(starts, parts, strict=False)
        ),
    )
