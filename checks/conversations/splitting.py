"""Puts rows together again that packing of documents split into pieces, each a document of its own.

A framework may split what does not fit its packed length and pack the pieces wherever there is room (TRL
0.27.2 by default; 1.16.0 as ``bfd_split``: "splits overflow sequences for packing into other examples").
No token is then lost, but each piece has its own positions and sees nothing of the one before. A row counts
as there where pieces that follow each other without a gap make up the whole of it, each used once; a row of
which a piece is missing stays in pieces, which are then no rows of the workload.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from checks.conversations.alignment import Terms
from checks.conversations.wrapping import Unwrapped, join
from checks.records.documents import Document
from checks.references.expected import ExpectedRow
from checks.references.spans import Stop

Ints = npt.NDArray[np.int32]
_SEED = 11
"""Of the weights of the sums by which pieces are looked up; what has an equal sum is then compared whole."""


@dataclass(frozen=True, slots=True)
class Split(Unwrapped):
    """One row out of pieces that are documents of their own, with positions and attention apart."""

    @property
    def cuts(self) -> tuple[tuple[int, bool], ...]:
        """The token of the row at which each later piece begins, and whether it begins its sequence too."""
        return tuple((token, at == 0) for token, _, at in self.pieces[1:])


@dataclass(frozen=True)
class Joined:
    """``documents``: rows put together and whole documents; ``recorded``: all documents as they lie in the
    sequences, without the padding behind pieces (empty where no row was split).
    """

    documents: tuple[Document, ...]
    recorded: tuple[Document, ...] = ()


def join_pieces(documents: tuple[Document, ...], rows: Iterable[ExpectedRow], terms: Terms) -> Joined:
    """Join the pieces of each row, in every epoch by itself; whole rows stay as they are.

    ``terms.max_length``: the longest piece (None: not known).
    """
    texts = [(row.index, _texts(row, terms)) for row in rows if len(row.ids)]
    whole = {text.tobytes() for _, forms in texts for text in forms}
    epochs: dict[int | None, list[Document]] = defaultdict(list)
    for document in documents:
        epochs[document.sequence.epoch].append(document)
    instead: dict[int, Document | None] = {}
    trimmed: dict[int, Document] = {}
    number = max((document.sequence.index for document in documents), default=-1)
    for held in epochs.values():
        pool = _Pool(held, whole, terms)
        for index, forms in texts:
            pieces = next((found for text in forms if (found := pool.take(index, text))), None)
            if pieces is None:
                continue
            number += 1
            instead.update((id(piece.document), None) for piece in pieces)
            instead[id(pieces[0].document)] = _row(pieces, number)
            trimmed.update((id(piece.document), piece.trimmed) for piece in pieces)
    if not trimmed:
        return Joined(documents)
    kept = (instead.get(id(document), document) for document in documents)
    return Joined(
        tuple(document for document in kept if document is not None),
        tuple(trimmed.get(id(document), document) for document in documents),
    )


def _texts(row: ExpectedRow, terms: Terms) -> list[Ints]:
    """The row as the template ends it, as it ends at its last stop token, and with a stop token appended."""
    texts = [row.ids]
    if row.padding < len(row.ids):
        texts.append(row.ids[: row.padding])
    if row.turns and row.turns[-1].stop is Stop.NONE:
        texts += [np.append(row.ids, np.int32(stop)) for stop in sorted(terms.stops)]
    return texts


@dataclass(frozen=True)
class _Piece:
    """A document that may be a piece, with ``end`` where its padding begins."""

    document: Document
    end: int

    @property
    def trimmed(self) -> Document:
        return replace(self.document, end=self.end, high=self.end)


class _Pool:
    """The documents of one epoch that are no row by themselves, by their tokens; each is taken once."""

    def __init__(self, documents: list[Document], whole: set[bytes], terms: Terms) -> None:
        self._held: dict[bytes, deque[_Piece]] = defaultdict(deque)
        self._taken: set[int] = set()
        for document in documents:
            ends = list(_ends(document, terms))
            texts = [document.sequence.ids[document.start : end].tobytes() for end in ends]
            if not len(document.ids) or any(text in whole for text in texts):
                continue
            for end, text in zip(ends, texts, strict=True):
                if terms.max_length is None or end - document.start <= terms.max_length:
                    self._held[text].append(_Piece(document, end))
        longest = max((len(text) // 4 for text in self._held), default=0)
        self._weights = np.random.default_rng(_SEED).integers(0, 2**64, longest, dtype=np.uint64)
        sums = [self._sums(np.frombuffer(text, dtype=np.int32))[-1] for text in self._held]
        self._known = np.unique(np.array(sums, dtype=np.uint64))

    def take(self, row: int, text: Ints) -> list[_Piece] | None:
        """Free pieces that follow each other from the row's first token to its last; None without."""
        pieces, at = list[_Piece](), 0
        while at < len(text):
            piece = self._next(row, text[at:], pieces)
            if piece is None:
                return None
            pieces.append(piece)
            at += piece.end - piece.document.start
        if len(pieces) < 2:
            return None
        self._taken.update(id(piece.document) for piece in pieces)
        return pieces

    def _next(self, row: int, rest: Ints, before: list[_Piece]) -> _Piece | None:
        """The longest free piece that the rest of a row begins with."""
        used = {id(piece.document) for piece in before}
        for length in self._lengths(rest):
            held = self._held.get(rest[:length].tobytes(), deque[_Piece]())
            while held and id(held[0].document) in self._taken:
                held.popleft()
            for piece in held:
                free = id(piece.document) not in self._taken and id(piece.document) not in used
                if free and piece.document.row in (None, row):
                    return piece
        return None

    def _lengths(self, rest: Ints) -> list[int]:
        """How many first tokens have the sum of a piece, most first: seldom one that is none."""
        if not len(self._known):
            return []
        sums = self._sums(rest)
        near = self._known[np.minimum(np.searchsorted(self._known, sums), len(self._known) - 1)]
        return [int(at) + 1 for at in np.flatnonzero(near == sums)[::-1]]

    def _sums(self, ids: Ints) -> npt.NDArray[np.uint64]:
        """uint64: for each number of first tokens their weighted sum modulo 2^64."""
        ids = ids[: len(self._weights)]
        return np.cumsum(ids.astype(np.uint64) * self._weights[: len(ids)])


def _ends(document: Document, terms: Terms) -> Iterator[int]:
    """Where a document may end: as cut, and where no mask says so before a run of an id that pads."""
    yield document.end
    ids = document.ids
    if not document.unmasked or not len(ids) or int(ids[-1]) not in terms.padding:
        return
    other = np.flatnonzero(ids != ids[-1])
    first = int(other[-1]) + 1 if len(other) else 0
    if document.sequence.supervised[document.start + first + 1 : document.end].any():
        return
    yield from {document.start + first, document.start + first + 1} - {document.end, document.start}


def _row(pieces: list[_Piece], number: int) -> Document:
    parts = [(piece.document.sequence, piece.document.start, piece.end) for piece in pieces]
    row = join(parts, number, Split)
    return Document(row, 0, 0, 0, len(row.ids), len(row.ids), pieces[0].document.row)
