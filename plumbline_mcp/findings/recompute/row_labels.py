"""What the loss covers in one row beside what the model generates there, and whether it learns to stop."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.answer import Flaw, unknown
from plumbline_mcp.findings.recompute.expected_rows import EITHER, MUST, NO
from plumbline_mcp.findings.recompute.laid import Laid
from plumbline_mcp.findings.recompute.row_record import IGNORED, Document

_MOST_RUNS = 4


def place(
    document: Document, row: int | None, token: int | None = None, turn: int | None = None
) -> dict[str, Any]:
    """Where a token of a row is."""
    return {
        "row": row if row is not None else document.row,
        "sequence": document.sequence,
        "turn": turn,
        "token": None if token is None else max(token, 0),
        "epoch": document.epoch,
        "rank": document.rank or None,
    }


class Labelled:
    """The labels of a laid document. Positions count in the document; ``origin``: the row's token 0."""

    def __init__(self, laid: Laid) -> None:
        document = laid.document
        self.laid, self.document = laid, document
        self.labels = document.labels if document.labels is not None else np.full(len(document.ids), IGNORED)
        self.on = document.supervised
        self.mask = np.zeros(len(document.ids), np.int8)
        self.mask[laid.first : laid.first + laid.kept] = laid.row.mask[laid.skipped : laid.last]
        if laid.appended:
            self.mask[laid.first + laid.kept] = EITHER
        self.origin = laid.first - laid.skipped

    def where(self, position: int | None = None, turn: int | None = None) -> dict[str, Any]:
        """The place of a position of the document."""
        token = None if position is None else position - self.origin
        return place(self.document, self.laid.row.index, token, turn)

    def reply_at(self, position: int) -> int | None:
        """The reply that holds a position."""
        return self.laid.row.reply_at(position - self.origin)

    def flaws(self) -> Iterator[Flaw]:
        """What is wrong with the labels, causes alone where one explains the rest."""
        must = self.mask == MUST
        if not must.any() and not self.on.any():
            if self.laid.last < len(self.laid.row.ids) and (self.laid.row.mask == MUST).any():
                yield Flaw("labels", "no-supervised-token", self.where(), 0.0)
            return
        if must.any() and not self.on.any():
            yield Flaw("labels", "no-supervised-token", self.where(_first(must)), 0.0, float(must.sum()))
            return
        if self._is_shifted(must):
            at = _first(must)
            yield Flaw("labels", "labels-shifted", self.where(at, self.reply_at(at)))
            return
        wrong = self.on & (self.labels != self.document.ids)
        for at, _ in _runs(wrong)[:1]:
            where = self.where(at, self.reply_at(at))
            found, bound = float(self.labels[at]), float(self.document.ids[at])
            yield Flaw("labels", "token-wrongly-supervised", where, found, bound)
        for at, end in _runs(must & ~self.on)[:_MOST_RUNS]:
            yield Flaw(
                "labels", "token-not-supervised", self.where(at, self.reply_at(at)), float(end - at), 0.0
            )
        for at, end in _runs(self.on & (self.mask == NO))[:_MOST_RUNS]:
            yield Flaw("labels", "token-wrongly-supervised", self.where(at), float(end - at), 0.0)

    def _is_shifted(self, must: np.ndarray) -> bool:
        """Labels, or the supervised tokens, that fit exactly one token further."""
        ids, either = self.document.ids, self.mask == EITHER
        own = bool((self.labels[self.on] == ids[self.on]).all())
        fits = bool(self.on[must].all()) and not (self.on & ~must & ~either).any()
        for step in (1, -1):
            values = _moved(self.labels, step, IGNORED)
            named = values >= 0
            if not own and named.any() and (values[named] == ids[named]).all():
                return True
            on = _moved(self.on, step, False)
            moved = bool((on | either)[must].all()) and not (on & ~must & ~either).any()
            if must.any() and moved and not fits:
                return True
        return False

    def undecided(self) -> Iterator[Flaw]:
        """Replies to be supervised of which the release does not say which tokens are generated."""
        for reply in self.laid.row.replies:
            if reply.supervised and reply.reason and reply.tokens[0] < self.laid.last:
                where = self.where(reply.tokens[0] + self.origin, reply.message)
                yield unknown("labels", "undecided-turn", reply.reason, **where)

    def stops(self, named: bool) -> Iterator[Flaw]:
        """Replies that never teach the model to stop."""
        laid = self.laid
        for number, reply in enumerate(laid.row.replies):
            if not reply.supervised or reply.reason:
                continue
            at = reply.stop + self.origin if reply.stop is not None and reply.stop < laid.last else None
            if reply.never_stops and laid.appended and number == len(laid.row.replies) - 1:
                at = laid.last + self.origin
            whole = len(laid.row.ids) <= laid.last
            if at is None and not (reply.never_stops and whole and reply.tokens[1] <= laid.last):
                continue
            if at is None or not self.on[at]:
                end = reply.tokens[1] - 1 + self.origin if at is None else at
                where = self.where(end, reply.message)
                if at is None and not named:
                    why = "the release names no stop ids, and its eos token does not follow the reply"
                    yield unknown("stop", "stop-unlabelled", why, **where)
                else:
                    yield Flaw("stop", "stop-unlabelled", where)


def _moved(values: np.ndarray, step: int, fill: Any) -> np.ndarray:
    found = np.roll(values, step)
    found[0 if step > 0 else -1] = fill
    return found


def _first(flags: np.ndarray) -> int:
    return int(np.flatnonzero(flags)[0])


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """[start, end) of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
