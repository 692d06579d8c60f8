"""The states of a finding and the only ways between them: no state is skipped, and none is left twice.

    proposed ──> rebuilt ──> confirmed | departure | refused
        └──────> disputed ──> refused

A verifier rebuilds or disputes. A reviewer's signature confirms a rebuilt finding, or accepts it as a
departure that the framework documents. What was disputed is never confirmed: whoever still believes it
proposes a new finding.
"""

from enum import StrEnum

from plumbline_mcp.errors import UsageError


class State(StrEnum):
    """How far a finding is."""

    PROPOSED = "proposed"
    REBUILT = "rebuilt"
    """Another principal found the same from the raw records, without being told."""
    DISPUTED = "disputed"
    """It found something else."""
    CONFIRMED = "confirmed"
    DEPARTURE = "departure"
    """True, and documented by the framework: accepted as it is."""
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return not NEXT[self]


NEXT: dict[State, frozenset[State]] = {
    State.PROPOSED: frozenset({State.REBUILT, State.DISPUTED}),
    State.REBUILT: frozenset({State.CONFIRMED, State.DEPARTURE, State.REFUSED}),
    State.DISPUTED: frozenset({State.REFUSED}),
    State.CONFIRMED: frozenset(),
    State.DEPARTURE: frozenset(),
    State.REFUSED: frozenset(),
}
"""What may follow each state."""

SIGNED = frozenset({State.CONFIRMED, State.DEPARTURE})
"""States that only a reviewer's signature gives."""

HOW = {
    State.PROPOSED: "it has to be rebuilt first: plumbline verify {finding} --recompute",
    State.REBUILT: "a reviewer decides: plumbline finding confirm {finding}",
    State.DISPUTED: "propose a new finding with what the verifier saw, or refuse it",
}


def check_step(finding: str, now: State, wanted: State) -> None:
    """Raise `UsageError` unless ``wanted`` may follow ``now``."""
    if wanted in NEXT[now]:
        return
    step = HOW.get(now, "propose a new finding").format(finding=finding)
    raise UsageError(f"{finding} is {now}: it cannot become {wanted}", step)
