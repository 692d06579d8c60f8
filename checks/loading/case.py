"""What the load check judges: the model as every rank recorded it after the load, beside the release."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from checks.loading.buffers import Buffer
from checks.loading.expected import Expected, Release
from checks.records.model_records import FillLine, RankModel, Recorded
from checks.records.runs import RunFolder
from checks.references.packs import Pack
from checks.verdict import Evidence, Outcome, Problem

PASSES = ("loaded-1", "loaded-2")
"""The moments after each load: the second one follows a fill with the complementary pattern."""
BUILT = "built"
HANDED_OUT = "handed-out"
"""The point of a fill by torch itself: of the memory that it handed out while the release was loaded."""


@dataclass(frozen=True)
class LoadCase:
    """``ranks``: what recorded anything, by rank; ``rank_problems``: ranks that died or recorded nothing.

    ``distribution``: the one whose names the map gives. ``computed``: what the reference makes of buffers
    that no release holds, and why it makes none. ``covered``: the map is known to be whole for this type of
    model. ``whole`` is false for the few tensors that faults are injected into.
    """

    run: RunFolder
    release: Release
    ranks: tuple[RankModel, ...] = field(repr=False)
    world_size: int = 1
    rank_problems: tuple[Problem, ...] = ()
    recipe: str | None = None
    pack: Pack | None = None
    distribution: str = ""
    stand_ins: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    covered: bool = True
    computed: Mapping[str, Buffer] = field(default_factory=dict, repr=False)
    not_computed: str = ""
    whole: bool = True

    @property
    def misfit(self) -> Outcome:
        """What a tensor that is not as the map says means: of an unknown model type it does not decide."""
        return Outcome.FAIL if self.covered else Outcome.INCONCLUSIVE

    @property
    def moment(self) -> str:
        """The last load that was recorded: its tensors are held against the release."""
        return next(
            (when for when in reversed(PASSES) if any(rank.at(when) for rank in self.ranks)), PASSES[0]
        )

    def holders(self, moment: str) -> dict[str, list[Recorded]]:
        """Every tensor at a moment with what each rank recorded of it, in the order of the ranks."""
        found: dict[str, list[Recorded]] = {}
        for rank in self.ranks:
            for name, entry in rank.at(moment).items():
                found.setdefault(name, []).append(entry)
        return found

    def loadable(self) -> dict[str, list[Recorded]]:
        """Parameters and persistent buffers after the load."""
        return {name: held for name, held in self.holders(self.moment).items() if is_loadable(held[0])}

    def pairs(self) -> Iterator[tuple[Expected, list[Recorded]]]:
        """Every parameter of the release that the model has too, with what the ranks hold, by name."""
        for name, held in sorted(self.loadable().items()):
            if name in self.release.expected and held[0].line.shape == self.release.expected[name].shape:
                yield self.release.expected[name], held

    def fills(self) -> Iterator[tuple[int, FillLine]]:
        """What was filled before the loads, with the rank."""
        for rank in self.ranks:
            for line in rank.fills:
                yield rank.rank, line

    def with_computed(self, computed: Mapping[str, Buffer], why_not: str) -> "LoadCase":
        """A copy that knows what the reference computes."""
        return replace(self, computed=computed, not_computed=why_not)

    def with_recorded(self, changed: Mapping[tuple[int, str, str], Recorded | None]) -> "LoadCase":
        """A copy in which (rank, moment, name) are other records; None takes one away."""
        ranks = []
        for rank in self.ranks:
            moments = {when: dict(entries) for when, entries in rank.moments.items()}
            for (number, when, name), entry in changed.items():
                if number == rank.rank and when in moments:
                    moments[when].pop(name, None)
                    if entry is not None:
                        moments[when][name] = entry
            ranks.append(replace(rank, moments=moments))
        return replace(self, ranks=tuple(ranks))

    def only(self, names: set[str]) -> "LoadCase":
        """A copy with some tensors alone, on every rank and at every moment."""
        release = replace(
            self.release,
            expected={name: entry for name, entry in self.release.expected.items() if name in names},
            unbuilt={name: why for name, why in self.release.unbuilt.items() if name in names},
            tied=self.release.tied if names >= set(self.release.tied or ()) else None,
            apart=self.release.apart if names >= set(self.release.apart or ()) else None,
        )
        ranks = []
        for rank in self.ranks:
            moments = {
                when: {name: entry for name, entry in entries.items() if name in names}
                for when, entries in rank.moments.items()
            }
            ranks.append(replace(rank, moments=moments))
        return replace(self, release=release, ranks=tuple(ranks), whole=False)


def is_loadable(entry: Recorded) -> bool:
    """Whether a release can hold the tensor: a parameter or a persistent buffer."""
    return entry.line.kind == "parameter" or entry.line.persistent
