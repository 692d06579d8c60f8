"""What the data check judges, and what its parts share."""

from dataclasses import dataclass, field

from checks.conversations.alignment import Fit, Terms
from checks.conversations.pairing import Pair, Pairing
from checks.records.documents import Document
from checks.records.rows import Sequence
from checks.references.expected import ExpectedRow, Supervise
from checks.references.tokenization import ReleaseTokenizer
from checks.verdict import Outcome, Part


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the right answer.

    ``sequence_length``: where packing slices the stream of all rows (rows themselves are then not cut);
    ``stops_named``: whether the release's generation_config.json names the stop ids. ``supervise``: which
    replies are supervised (None: not said). ``notes``: what the reader of the rows says of their columns.
    """

    packing: str = "none"
    sequence_length: int | None = None
    shuffle: bool = False
    epochs: int | None = None
    world_size: int = 1
    terms: Terms = field(default_factory=Terms)
    stops_named: bool = False
    labelled: bool = True
    supervise: Supervise | None = "all"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """What is judged: documents of every epoch beside the workload's rows.

    Where packing cuts rows across sequences, the documents are rows put together again; ``wrapped`` are then
    the sequences as recorded, and ``repeated`` those whose tokens another one of their epoch holds. Where it
    splits rows into documents of their own, ``recorded`` are all documents as they lie in the sequences.
    """

    documents: tuple[Document, ...]
    rows: tuple[ExpectedRow, ...]
    recipe: Recipe
    tokenizer: ReleaseTokenizer
    wrapped: tuple[Sequence, ...] = ()
    repeated: tuple[Sequence, ...] = ()
    recorded: tuple[Document, ...] = ()

    @property
    def laid(self) -> tuple[Document, ...]:
        """The documents as they lie in the recorded sequences."""
        return self.recorded or self.documents


@dataclass(frozen=True)
class Epochs:
    """The pairings of every recorded epoch, in order.

    ``first``: each row where it is seen first (and again in that epoch); ``never``: rows in no epoch.
    """

    numbers: tuple[int | None, ...]
    pairings: tuple[Pairing, ...]
    first: tuple[Pair, ...]
    never: tuple[ExpectedRow, ...]

    @property
    def unexpected(self) -> tuple[Document, ...]:
        """Documents of any epoch that are no row of the workload."""
        return tuple(document for pairing in self.pairings for document in pairing.unexpected)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every paired document of every epoch."""
        return tuple(each for found in self.pairings for each in (*found.pairs, *found.repeated))


def comparable(each: Pair) -> bool:
    """Whether a row's ids allow a look at its labels."""
    return not each.row.problem and each.alignment.fit not in (Fit.DIFFERS, Fit.EMPTY)


def not_here(name: str, reason: str) -> Part:
    """A part that says nothing about these rows, and why."""
    return Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=reason, applicable=False)
