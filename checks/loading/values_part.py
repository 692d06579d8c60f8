"""The values of every loaded tensor, rank by rank, held against the release's; differences are named."""

from collections.abc import Callable
from dataclasses import dataclass, field

from checks.errors import Inconclusive
from checks.loading.assembling import Assembled, Box, distinct_boxes, expected_digest
from checks.loading.case import LoadCase
from checks.loading.expected import Expected
from checks.loading.kinds import (
    Difference,
    Digests,
    named_from_digests,
    named_from_values,
    same_elsewhere,
)
from checks.records.model_records import Recorded
from checks.references.checkpoints.formats import FORMATS
from checks.references.checkpoints.header import Unreadable
from checks.verdict import Outcome, Place, Problem

Tell = Callable[[int, str], None]
"""Told the elements judged, and of which tensor."""


@dataclass
class ValuesFound:
    """What comparing gave: ``judged`` tensors of ``total``, how many of them by whole values."""

    judged: int = 0
    total: int = 0
    elements: int = 0
    differing: int = 0
    named_from_samples: int = 0
    problems: list[Problem] = field(default_factory=list)


@dataclass
class _Suspect:
    """A tensor with parts whose digest is not the expected one: each box with what a rank holds of it."""

    expected: Expected
    held: list[Recorded]
    wrong: list[tuple[Box, Recorded]]


def compare_values_of(case: LoadCase, tell: Tell) -> ValuesFound:
    """Hold every tensor against the release. Raises `Inconclusive` when a file changed meanwhile."""
    found, digests = ValuesFound(), Digests()
    suspects: list[_Suspect] = []
    for expected, held in case.pairs():
        found.total += 1
        try:
            wrong = _wrong(case, expected, held, digests, found)
        except Unreadable as error:
            raise Inconclusive(f"a file of the release changed while it was read: {error}") from error
        if wrong:
            suspects.append(_Suspect(expected, held, wrong))
        tell(expected.size, expected.name)
    for suspect in suspects:
        difference = _named(suspect, digests, found)
        if difference is not None:
            found.differing += 1
            found.problems.append(_problem(case, suspect, difference))
    return found


def _wrong(
    case: LoadCase, expected: Expected, held: list[Recorded], digests: Digests, found: ValuesFound
) -> list[tuple[Box, Recorded]]:
    """The parts of a tensor that are not as expected; what is still filled is reported elsewhere."""
    undecided = _undecided(expected, held)
    if undecided:
        found.problems.append(undecided)
        return []
    wrong = []
    boxes = distinct_boxes(held)
    found.judged += 1
    found.elements += expected.size
    for box, holders in boxes.items():
        wanted: dict[str, str] = {}
        for entry in holders:
            if entry.dtype not in wanted:
                wanted[entry.dtype] = expected_digest(expected, entry.dtype, box)
                digests.add(entry.dtype, box, wanted[entry.dtype], expected.name)
        unequal = (entry for entry in holders if entry.line.sha256 != wanted[entry.dtype])
        wrong += [(box, entry) for entry in unequal if not still_filled(entry)]
    uncovered = _uncovered(case, expected, boxes)
    if uncovered:
        found.problems.append(uncovered)
    return wrong


def _undecided(expected: Expected, held: list[Recorded]) -> Problem | None:
    """Why a tensor's values cannot be judged at all, None where they can."""
    name, step, why = expected.name, "rerun the procedure load with this version's recorder", ""
    odd = next((entry for entry in held if entry.dtype not in FORMATS), None)
    unplaced = next((entry for entry in held if entry.offset is None), None)
    blank = next((entry for entry in held if entry.line.sha256 is None), None)
    misfit = next((entry for entry in held if odd is None and not expected.can_be(entry.dtype)), None)
    entry = odd or unplaced or blank or misfit
    if entry is None:
        return None
    if odd is not None:
        why = f"is recorded as {odd.line.dtype[:40]}, which has no reader"
    elif unplaced is not None and unplaced.line.placement is not None:
        kinds = ", ".join(unplaced.line.placement.kinds)[:80]
        why, step = f"is placed as {kinds}, from which no offset follows", "use a layout of plain shards"
    elif blank is not None:
        why = "has no digest: it lay on the meta device"
    else:
        why = f"is {entry.dtype}, and the release's values cannot be written so; see dtypes"
    return Problem(
        code="values-undecided",
        outcome=Outcome.INCONCLUSIVE,
        message=f"{name} on rank {entry.rank} {why}",
        place=Place(tensor=name, rank=entry.rank),
        next_step=step,
    )


def still_filled(entry: Recorded) -> bool:
    """Whether every local element is what NaN filling leaves; such a tensor is reported under ``filled``."""
    return bool(entry.line.elements) and entry.line.nonfinite == entry.line.elements


def _uncovered(case: LoadCase, expected: Expected, boxes: dict[Box, list[Recorded]]) -> Problem | None:
    """The ranks' shards make the whole tensor, once. Where ranks left no record, the rest is unknown."""
    size = sum(box.size for box in boxes)
    if size == expected.size:
        return None
    recorded = sum(bool(rank.at(case.moment)) for rank in case.ranks)
    missing = recorded < case.world_size
    return Problem(
        code="shards-incomplete",
        outcome=Outcome.INCONCLUSIVE if missing else Outcome.FAIL,
        message=(
            f"{expected.name}: the ranks' shards hold {size:,} elements together, the tensor has"
            f" {expected.size:,}"
            + (f" ({recorded} of {case.world_size} ranks left records)" if missing else "")
        ),
        place=Place(tensor=expected.name),
        expected=f"{expected.size:,}",
        found=f"{size:,}",
        next_step="look at how the tensor is sharded: a part is on no rank, or on two",
    )


def _named(suspect: _Suspect, digests: Digests, found: ValuesFound) -> Difference | None:
    """What happened to a tensor; None where it holds the other right way of rounding."""
    expected, (box, entry) = suspect.expected, suspect.wrong[0]
    if expected.exact is not None and all(
        each.line.sha256 == expected_digest(expected, each.dtype, part, expected.exact)
        for part, each in suspect.wrong
    ):
        return None
    elsewhere = same_elsewhere(digests, expected, box, entry)
    if elsewhere is not None:
        return elsewhere
    whole = Assembled.of(_wrong_first(suspect))
    if whole is not None and whole.shape == expected.shape:
        return named_from_values(expected, whole)
    found.named_from_samples += 1
    return named_from_digests(expected, box, entry)


def _wrong_first(suspect: _Suspect) -> list[Recorded]:
    """What the ranks hold, those of other boxes after the wrong ones: a right replica must not stand in."""
    wrong = {entry.rank for _, entry in suspect.wrong}
    return sorted(suspect.held, key=lambda entry: entry.rank not in wrong)


def _problem(case: LoadCase, suspect: _Suspect, difference: Difference) -> Problem:
    expected, name = suspect.expected, suspect.expected.name
    ranks = sorted({entry.rank for _, entry in suspect.wrong})
    everywhere = len(ranks) == len({entry.rank for entry in suspect.held})
    only = "" if everywhere or len(case.ranks) == 1 else f" (on rank {', '.join(map(str, ranks[:8]))} only)"
    sources = expected.made.tensors
    made = sources[0] if len(sources) == 1 else f"{len(sources)} tensors, {sources[0]} first"
    initialised = ""
    if any(name in line.names and line.point == "materialised" for _, line in case.fills()):
        initialised = "; the loader found no value for it and initialised it"
    return Problem(
        code=difference.code,
        outcome=case.misfit,
        message=f"{name}: {difference.message}{initialised}{only}",
        place=Place(tensor=name, rank=None if everywhere else ranks[0]),
        expected=f"the release's {made}",
        next_step=_STEPS.get(difference.code, _STEP),
    )


_STEP = "look at how the loader reads, converts and copies this tensor"
_STEPS = {
    "transposed": "look at the layout in which the loader places this tensor, and swap its axes back",
    "permuted": "look at the order in which the loader gathers these slices, experts, or gate and up",
    "wrong-scale": "look at how the loader applies the scales of this low-precision tensor, block by block",
    "re-initialised": "look at why the loader found no value for this tensor: names, prefixes, ignored keys",
    "rounded-on-its-way": "load in the recipe's dtype directly: a narrower dtype on the way loses bits",
    "truncated": "look at the copy of this tensor: it ends early",
}
