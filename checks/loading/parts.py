"""The parts beside the values: names, shapes, dtypes, what is still filled, buffers, ties, replicas."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from checks.loading.assembling import distinct_boxes
from checks.loading.buffers import is_computed, unlike_reference
from checks.loading.case import BUILT, HANDED_OUT, PASSES, LoadCase, is_loadable
from checks.loading.expected import Expected
from checks.loading.kinds import listed
from checks.loading.values_part import still_filled
from checks.records.model_records import FillLine, Recorded
from checks.references.checkpoints.comparing import blocks
from checks.rules import MAX_PROBLEMS_LISTED
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of


def not_applicable(name: str, reason: str) -> Part:
    """A part that this input has nothing for; it does not count."""
    return Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=reason, applicable=False)


def ranks_part(case: LoadCase) -> Part:
    """Every rank ended well and left records."""
    judged = sum(bool(rank.at(case.moment)) for rank in case.ranks)
    coverage = Coverage(judged=judged, total=case.world_size, unit="ranks")
    return part_of("ranks", case.rank_problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def names_part(case: LoadCase) -> Part:
    """Every tensor of the release is in the model, and the model has none that the release lacks."""
    expected, model = case.release.expected, case.loadable()
    unbuilt = {name: why for name, why in case.release.unbuilt.items() if name not in model}
    missing = [name for name in expected if name not in model and name not in unbuilt]
    computed = {name for name in missing if _is_computed(case, name)}
    head = case.release.tied[1] if case.release.tied else None
    problems = [_missing(case, expected[name]) for name in missing if name not in computed and name != head]
    problems += [
        _unexpected(case, name, held[0]) for name, held in sorted(model.items()) if name not in expected
    ]
    notes = []
    if unbuilt:
        whys = sorted(set(unbuilt.values()))
        notes.append(
            f"{len(unbuilt)} tensors of multi-token prediction are not in the model and not judged"
            f" ({'; '.join(whys[:3])}): {listed(unbuilt)}"
        )
    if not case.covered:
        notes.append(
            "the pack's name map does not cover this type of model: what differs may be how the framework"
            " arranges it"
        )
    if computed:
        notes.append(f"the model computes what the release also stores: {listed(sorted(computed))}")
    judged = sum(name in model for name in expected)
    total = len(expected) - len(unbuilt) - len(computed)
    coverage = Coverage(judged=judged, total=total, unit="tensors")
    return part_of(
        "names", problems, coverage=coverage, notes=(*notes, *case.release.notes), limit=MAX_PROBLEMS_LISTED
    )


def _is_computed(case: LoadCase, name: str) -> bool:
    """Whether older releases store what models compute: a rotary embedding's frequencies, a buffer here."""
    if not name.endswith("rotary_emb.inv_freq"):
        return False
    buffers = (n for n, held in case.holders(case.moment).items() if is_computed(held[0]))
    return any(buffer.endswith("rotary_emb.inv_freq") for buffer in buffers)


def _missing(case: LoadCase, entry: Expected) -> Problem:
    sources = entry.made.tensors
    return Problem(
        code="tensor-missing",
        outcome=case.misfit,
        message=f"{entry.name} is not in the model: {listed(list(sources))} of the release was not loaded",
        place=Place(tensor=entry.name),
        next_step="look at why the model has no such parameter; if the framework names it otherwise, its"
        " pack's names.toml has to say so",
    )


def _unexpected(case: LoadCase, name: str, entry: Recorded) -> Problem:
    return Problem(
        code="tensor-unexpected",
        outcome=case.misfit,
        message=f"{name} {list(entry.line.shape)} is in the model, and the release has nothing for it",
        place=Place(tensor=name),
        next_step="name the release that was loaded; if the framework names a tensor otherwise, its pack's"
        " names.toml has to say so",
    )


def shapes_part(case: LoadCase) -> Part:
    """Every tensor has the shape that the release's tensors make."""
    known = [
        (case.release.expected[name], held)
        for name, held in sorted(case.loadable().items())
        if name in case.release.expected
    ]
    problems = [
        Problem(
            code="shape-differs",
            outcome=case.misfit,
            message=f"{expected.name} is {list(entry.line.shape)} in the model, the release makes it"
            f" {list(expected.shape)}",
            place=Place(tensor=expected.name, rank=entry.rank),
            expected=str(list(expected.shape)),
            found=str(list(entry.line.shape)),
            next_step="look at the configuration that the model was built from, or at how it is padded",
        )
        for expected, held in known
        for entry in held[:1]
        if entry.line.shape != expected.shape
    ]
    coverage = Coverage(judged=len(known), total=len(known), unit="tensors")
    return part_of("shapes", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def dtypes_part(case: LoadCase) -> Part:
    """Every tensor has the recipe's dtype, or the wider one that the framework documents to keep."""
    problems, notes = list[Problem](), list[str]()
    kept: dict[str, list[str]] = {}
    pairs = list(case.pairs())
    for expected, held in pairs:
        wrong = next((entry for entry in held if entry.dtype not in expected.dtypes), None)
        if wrong is not None:
            problems.append(_dtype(case, expected, wrong))
        elif expected.kept is not None and held[0].dtype != expected.dtypes[0]:
            kept.setdefault(str(expected.kept.citation), []).append(expected.name)
    counts = Counter(held[0].line.dtype for _, held in pairs)
    notes += [f"kept wider, as documented in {where}: {listed(names)}" for where, names in kept.items()]
    measured = tuple(
        Measurement(name=f"tensors in {dtype}", value=count, unit="tensors")
        for dtype, count in sorted(counts.items())
    )
    coverage = Coverage(judged=len(pairs), total=len(pairs), unit="tensors")
    return part_of(
        "dtypes",
        problems,
        coverage=coverage,
        measurements=measured,
        notes=tuple(notes),
        limit=MAX_PROBLEMS_LISTED,
    )


def _dtype(case: LoadCase, expected: Expected, entry: Recorded) -> Problem:
    who = f"the recipe says {case.recipe}" if case.recipe else "the recipe names no dtype"
    return Problem(
        code="dtype-differs",
        outcome=case.misfit,
        message=f"{expected.name} is {entry.dtype} after the load; {who}, so it has to be"
        f" {' or '.join(expected.dtypes)}",
        place=Place(tensor=expected.name, rank=entry.rank),
        expected=" or ".join(expected.dtypes),
        found=entry.dtype,
        next_step="load every tensor in one dtype, or declare in the pack's names.toml what the framework"
        " documents to keep in another",
    )


def filled_part(case: LoadCase) -> Part:
    """No element is left as it was filled: no NaN of a fill, and both loads end with the same bytes.

    Tensors that held memory before the load were filled then; those that the load made come from memory that
    was filled when it was handed out. Of what was neither nothing is known, and an empty look is no pass.
    """
    passes = [when for when in PASSES if any(rank.at(when) for rank in case.ranks)]
    held = {when: case.loadable() if when == case.moment else case.holders(when) for when in passes}
    last = held.get(case.moment, {})
    filled = _filled(case)
    problems = list[Problem]()
    for name, entries in sorted(last.items()):
        others = {entry.rank: entry for entry in held[passes[0]].get(name, [])} if len(passes) > 1 else {}
        wrong = next(_left(case, name, entries, others), None)
        if wrong is not None:
            problems.append(wrong)
    if len(passes) == 1:
        problems.append(_one_pass(passes[0]))
    judged = sum(name in filled for name in last)
    if last and not problems and not judged:
        return not_applicable("filled", _NOTHING_FILLED.format(len(last)))
    coverage = Coverage(judged=judged, total=len(last), unit="tensors")
    notes = tuple(_how_filled(last, filled))
    return part_of("filled", problems, coverage=coverage, notes=notes, limit=MAX_PROBLEMS_LISTED)


def _filled(case: LoadCase) -> dict[str, FillLine]:
    """Every tensor that was filled, with the first line that says so; earlier points come first."""
    found: dict[str, FillLine] = {}
    for _, line in sorted(case.fills(), key=lambda each: each[1].point == HANDED_OUT):
        for name in line.names:
            found.setdefault(name, line)
    return found


def _how_filled(last: Mapping[str, object], filled: Mapping[str, FillLine]) -> Iterator[str]:
    lines = [filled[name] for name in last if name in filled]
    made = [line for line in lines if line.point == HANDED_OUT]
    largest = sum(line.pattern == "largest" for line in made)
    yield (
        f"{len(lines) - len(made)} of {len(last)} tensors held memory that was filled before the loader"
        f" wrote; {len(made)} were made by the load, from memory that torch fills when it hands it out"
    )
    if largest:
        yield (
            f"{largest} of them hold integers, filled with their largest value in both loads: a part that was"
            " left shows under values, except where the release holds that value too"
        )
    unknown = len(last) - len(lines)
    if unknown:
        yield (
            f"{unknown} were made by the load from memory that nothing filled: what it left of them shows"
            " under values, unless the memory held the release's values before"
        )


_NOTHING_FILLED = (
    "none of {} tensors held memory before the load, and the job's torch fills none that it hands out (torch"
    " 2.2 and newer do): what the loader leaves out shows under values, unless its memory held the release's"
    " values before"
)


def _one_pass(when: str) -> Problem:
    return Problem(
        code="one-load",
        outcome=Outcome.INCONCLUSIVE,
        message=f"only {when} was recorded: without a second load after another fill, integers that were left"
        " out cannot be told from loaded ones",
        next_step="rerun the procedure load to its end",
    )


def _left(
    case: LoadCase, name: str, entries: list[Recorded], others: dict[int, Recorded]
) -> Iterator[Problem]:
    for entry in entries:
        place = Place(tensor=name, rank=entry.rank)
        if still_filled(entry):
            message = f"{name} still holds the fill on rank {entry.rank}: it was never loaded"
            yield Problem(code="still-filled", message=message, place=place, next_step=_FILLED)
        elif entry.line.nonfinite and not _has_nonfinite(case, name):
            message = (
                f"{entry.line.nonfinite} of {entry.line.elements} elements of {name} on rank {entry.rank} are"
                " NaN or infinite after the load, none in the release: they were left out of a copy"
            )
            yield Problem(code="partly-filled", message=message, place=place, next_step=_FILLED)
        other = others.get(entry.rank)
        if other is not None and other.line.sha256 != entry.line.sha256:
            message = (
                f"{name} on rank {entry.rank} differs between two loads of the same release: what it holds"
                " comes from the memory before, or from an initialisation"
            )
            yield Problem(code="differs-between-loads", message=message, place=place, next_step=_FILLED)


_FILLED = "look at why the loader leaves this tensor, or a part of it, out: names, prefixes, slices"


def _has_nonfinite(case: LoadCase, name: str) -> bool:
    expected = case.release.expected.get(name)
    if expected is None:
        return False
    return _nonfinite_in(expected)


def _nonfinite_in(expected: Expected) -> bool:
    return any(
        not np.isfinite(expected.values.rows(first, last)).all() for first, last in blocks(expected.shape)
    )


def buffers_part(case: LoadCase) -> Part:
    """Buffers that no release holds are as the model computes them: the load did not touch them."""
    held = {name: entries for name, entries in case.holders(case.moment).items() if is_computed(entries[0])}
    if not held:
        return not_applicable("buffers", "the model has no buffer beside those of the release")
    built = case.holders(BUILT)
    first = case.holders(PASSES[0])
    reference = case.computed
    problems, judged = list[Problem](), 0
    for name, entries in sorted(held.items()):
        shown, wrong = _touched(name, entries, built.get(name, []), first.get(name, []))
        if not wrong and name in reference:
            shown, message = True, unlike_reference(reference[name], entries[0])
            wrong = [_buffer(name, entries[0], message)] if message else []
        judged += shown
        problems += wrong[:1]
    if judged < len(held):
        why = case.not_computed or "the reference has no such buffer, and none was recorded before the load"
        problems.append(
            Problem(
                code="buffer-unknown",
                outcome=Outcome.NOT_EVALUATED,
                message=f"{len(held) - judged} of {len(held)} computed buffers have nothing to be held"
                f" against: {why}",
                next_step="record the model as built, before the load",
            )
        )
    coverage = Coverage(judged=judged, total=len(held), unit="buffers")
    known = len(set(held) & set(reference))
    notes = (
        (f"{known} of them held against what transformers computes from the configuration",) if known else ()
    )
    return part_of("buffers", problems, coverage=coverage, notes=notes, limit=MAX_PROBLEMS_LISTED)


def _touched(
    name: str, entries: list[Recorded], built: list[Recorded], first: list[Recorded]
) -> tuple[bool, list[Problem]]:
    """Whether the records alone show that a buffer is as built, and what they show against it."""
    before = {entry.rank: entry.line for entry in built if entry.line.sha256 is not None}
    earlier = {entry.rank: entry.line for entry in first}
    shown, problems = False, list[Problem]()
    for entry in entries:
        line = entry.line
        was = before.get(entry.rank)
        if line.nonfinite:
            message = f"{line.nonfinite} of {line.elements} elements are NaN or infinite"
            problems.append(_buffer(name, entry, message))
        elif was is not None and was.dtype == line.dtype:
            shown = True
            if was.sha256 != line.sha256:
                problems.append(_buffer(name, entry, "it holds other values than when the model was built"))
        elif entry.rank in earlier and earlier[entry.rank].sha256 != line.sha256:
            problems.append(_buffer(name, entry, "it differs between two loads"))
    return shown or bool(problems), problems


def _buffer(name: str, entry: Recorded, message: str) -> Problem:
    return Problem(
        code="buffer-changed",
        message=f"{name} on rank {entry.rank}, a buffer that no release holds: {message}",
        place=Place(tensor=name, rank=entry.rank),
        next_step="look at what writes into this buffer while the model is loaded",
    )


def ties_part(case: LoadCase) -> Part:
    """Tensors that the configuration ties share storage, and no others do."""
    last = case.holders(case.moment)
    problems, judged = list[Problem](), 0
    tied = case.release.tied
    if tied is not None:
        judged += 1
        problems += list(_tie(case, tied, last))
    for name, held in sorted(last.items()):
        for entry in held:
            other = entry.line.same_as
            if other is None or {name, other} == set(tied or ()) or not is_loadable(entry):
                continue
            problems.append(_shared(name, other, entry))
            break
    apart = case.release.apart
    if tied is None and apart is None and not problems:
        return not_applicable("ties", "the configuration ties nothing, or does not say")
    judged += apart is not None
    return part_of(
        "ties", problems, coverage=Coverage(judged=max(judged, 1), total=max(judged, 1), unit="pairs")
    )


def _tie(case: LoadCase, tied: tuple[str, str], last: dict[str, list[Recorded]]) -> Iterator[Problem]:
    embedding, head = tied
    if head not in last:
        yield Problem(
            code="head-not-recorded",
            outcome=Outcome.INCONCLUSIVE,
            message=f"the configuration ties {head} to {embedding}, and the model has no {head}",
            place=Place(tensor=head),
            next_step="look at how the framework names the output head; its pack's names.toml has to say so",
        )
        return
    partners = {entry.rank: entry for entry in last.get(embedding, [])}
    for entry in last[head]:
        other = partners.get(entry.rank)
        shared = entry.line.same_as == embedding or (other is not None and other.line.same_as == head)
        if not shared and entry.line.elements:
            yield Problem(
                code="not-tied",
                message=f"{head} has memory of its own on rank {entry.rank}; the configuration ties it to"
                f" {embedding}, and an optimizer would train the two apart",
                place=Place(tensor=head, rank=entry.rank),
                next_step="tie the two after the load, before the optimizer is made",
            )
            return


def _shared(name: str, other: str, entry: Recorded) -> Problem:
    return Problem(
        code="storage-shared",
        message=f"{name} shares its memory with {other} on rank {entry.rank}, and the configuration ties"
        " the two nowhere",
        place=Place(tensor=name, rank=entry.rank),
        next_step="look at which of the two tensors was assigned in the other's place",
    )


def replicas_part(case: LoadCase) -> Part:
    """Ranks that hold the same part of a tensor hold the same bytes, and every rank holds every tensor."""
    if case.world_size == 1:
        return not_applicable("replicas", "there is one rank")
    problems, judged, total = list[Problem](), 0, 0
    present = {rank.rank for rank in case.ranks if rank.at(case.moment)}
    for name, held in sorted(case.holders(case.moment).items()):
        total += 1
        absent = present - {entry.rank for entry in held}
        if absent:
            problems.append(_absent(name, min(absent)))
            continue
        copies = [entries for entries in distinct_boxes(held).values() if len(entries) > 1]
        judged += bool(copies)
        for entries in copies:
            other = next((e for e in entries[1:] if _bits(e) != _bits(entries[0])), None)
            if other is not None:
                problems.append(_replica(name, entries, other))
                break
    if not judged and not problems:
        return not_applicable("replicas", "no two ranks hold the same part of a tensor: every one is sharded")
    coverage = Coverage(judged=judged, total=judged, unit="tensors on two ranks and more")
    return part_of("replicas", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def _bits(entry: Recorded) -> tuple[str, str | None]:
    return entry.line.dtype, entry.line.sha256


def _absent(name: str, rank: int) -> Problem:
    return Problem(
        code="tensor-absent",
        message=f"rank {rank} has no {name}, which other ranks have",
        place=Place(tensor=name, rank=rank),
        next_step="look at how the model is built on this rank",
    )


def _replica(name: str, entries: list[Recorded], other: Recorded) -> Problem:
    agreeing = sum(_bits(entry) == _bits(other) for entry in entries)
    return Problem(
        code="replicas-differ",
        message=f"{name} on rank {other.rank} has other bytes than on rank {entries[0].rank}"
        f" ({agreeing} of {len(entries)} ranks agree with rank {other.rank})",
        place=Place(tensor=name, rank=other.rank),
        next_step="look at how the ranks load: each has to read the release, or to receive it from one",
    )
