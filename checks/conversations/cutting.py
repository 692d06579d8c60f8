"""Cuts packed sequences into documents where the record does not say where they begin."""

from collections.abc import Callable

from checks.conversations.alignment import Terms
from checks.records.documents import Document, documents_of, position_cuts
from checks.records.rows import Sequence
from checks.references.expected import ExpectedRow


def cut_documents(
    sequences: tuple[Sequence, ...], rows: list[ExpectedRow], packed: bool, terms: Terms
) -> tuple[Document, ...]:
    """The documents of all sequences.

    Cut by recorded lengths, else (when packed) by rows found one after the other, and behind them where
    position ids start again.
    """
    find = _finder(rows, terms.max_length) if packed else None
    documents: list[Document] = []
    for sequence in sequences:
        cuts = None
        if find is not None and sequence.lengths is None:
            found = find(sequence)
            last = found[-1] if found else 0
            cuts = [*found, *(cut for cut in position_cuts(sequence) if cut > last)]
        documents.extend(documents_of(sequence, cuts, terms.padding))
    return tuple(documents)


def _finder(rows: list[ExpectedRow], max_length: int | None) -> Callable[[Sequence], list[int]]:
    texts = {row.ids[:max_length].tobytes() for row in rows if len(row.ids)}
    lengths = sorted({len(text) // 4 for text in texts}, reverse=True)

    def find(sequence: Sequence) -> list[int]:
        """Ends of the rows that follow each other from the first token on."""
        ids, at, cuts = sequence.ids, 0, list[int]()
        while at < len(ids):
            length = next(
                (n for n in lengths if at + n <= len(ids) and ids[at : at + n].tobytes() in texts), None
            )
            if length is None:
                break
            at += length
            cuts.append(at)
        return cuts

    return find
