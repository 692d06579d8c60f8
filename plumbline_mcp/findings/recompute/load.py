"""The question of the check *load*, answered anew: does every tensor equal the original after the load?"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.answer import Answer, Flaw, Level, unknown
from plumbline_mcp.findings.recompute.decoding import DTYPES, encode, round_to
from plumbline_mcp.findings.recompute.difference import named_difference
from plumbline_mcp.findings.recompute.frequencies import inverse_frequencies
from plumbline_mcp.findings.recompute.load_reference import (
    Wanted,
    can_be,
    reference_of,
    require_readable,
)
from plumbline_mcp.findings.recompute.model_parts import (
    ROTARY,
    Held,
    against_formula,
    dtype_flaws,
    name_flaws,
    pairs,
    rank_flaws,
    replica_flaws,
    shape_flaws,
    tie_flaws,
)
from plumbline_mcp.findings.recompute.model_record import (
    Box,
    Entry,
    Moments,
    distributions,
    part_of,
    read_moments,
    whole_of,
)
from plumbline_mcp.findings.recompute.names_map import NamesMap
from plumbline_mcp.findings.recompute.reading import Cannot, first_record, place_in
from plumbline_mcp.findings.recompute.recipe import pack_folder
from plumbline_mcp.findings.recompute.release import Weights

PARTS = ("ranks", "names", "shapes", "dtypes", "values", "filled", "buffers", "ties", "replicas")
LOADS = ("loaded-1", "loaded-2")


@dataclass(frozen=True)
class _Load(Held):
    """A recorded load beside the release; ``held`` is what the last load left."""

    moments: Moments = field(repr=False)


def recompute(folder: Path, question: Question) -> Submission:
    """Answer the question on the first record. Raises `Cannot`."""
    record = first_record(folder, question)
    if record.job.get("procedure") != "load":
        raise Cannot("the record is no run of the procedure load")
    record.refuse_cancelled()
    if "model" not in question.files:
        raise Cannot("the question names no release (files: model)")
    weights = Weights.open(place_in(folder, question.files["model"]))
    require_readable(weights)
    moments = read_moments(record)
    answer = Answer(PARTS)
    answer.add(rank_flaws(record, moments, LOADS))
    last = next((when for when in reversed(LOADS) if when in moments), None)
    if last is None:
        answer.add([unknown("names", "nothing-recorded", "no rank recorded a loaded model")])
        return answer.submission("")
    versions = distributions(record)
    pack = pack_folder(folder, question, record)
    names = NamesMap.of(pack, str(weights.config.get("model_type", "")), versions)
    reference = reference_of(weights, names, record.settings.get("dtype"), moments[last])
    load = _Load(record, moments[last], reference, moments)
    with np.errstate(invalid="ignore", over="ignore"):
        _judge(answer, load)
    return answer.submission(f"{len(load.loadable)} tensors of {record.world_size} ranks")


def _judge(answer: Answer, load: _Load) -> None:
    answer.add(name_flaws(load))
    answer.add(shape_flaws(load))
    answer.add(dtype_flaws(answer, load))
    answer.add(_values(answer, load))
    answer.add(_filled(load))
    answer.add(_buffers(load))
    answer.add(tie_flaws(load))
    answer.add(replica_flaws(load))


def _values(answer: Answer, load: _Load) -> Iterator[Flaw]:
    """Every part of every tensor has the bytes of the release's values."""
    digests: dict[tuple[str, tuple[int, ...], str], str] = {}
    suspects: list[tuple[Wanted, list[Entry], list[Entry]]] = []
    elements = 0
    for wanted, entries in pairs(load):
        reason = _undecided(load, wanted, entries)
        if reason:
            yield unknown("values", "values-undecided", f"{wanted.name}: {reason}"[:300], tensor=wanted.name)
            continue
        elements += int(np.prod(wanted.shape))
        wrong = _wrong_parts(load, wanted, entries, digests)
        if wrong:
            suspects.append((wanted, entries, wrong))
        boxes = {entry.box for entry in entries}
        size = sum(int(np.prod(box[1])) for box in boxes if box is not None)
        if size != np.prod(wanted.shape):
            whole = len({e.rank for held in load.held.values() for e in held}) == load.record.world_size
            level: Level = "fail" if whole else "inconclusive"
            place = {"tensor": wanted.name}
            bound = float(np.prod(wanted.shape))
            yield Flaw("values", "shards-incomplete", place, float(size), bound, level)
    answer.measured("values", "tensors that differ", len(suspects))
    answer.measured("values", "elements compared by digest", elements)
    for wanted, entries, wrong in suspects:
        ranks = sorted({entry.rank for entry in wrong})
        everywhere = len(ranks) == len({entry.rank for entry in entries})
        where: dict[str, int | str] = {"tensor": wanted.name, **({} if everywhere else {"rank": ranks[0]})}
        code = _kind(load, wanted, entries, wrong, digests)
        yield Flaw("values", code, where, level=load.level, why=f"{wanted.name} {code}")


def _undecided(load: _Load, wanted: Wanted, entries: list[Entry]) -> str:
    for entry in entries:
        if entry.dtype not in DTYPES:
            return f"{entry.dtype} has no decoder here"
        if entry.box is None:
            return "the record does not tell where a part lies"
        if entry.sha256 is None:
            return "it has no digest"
        if _disagrees(entry):
            return f"what rank {entry.rank} wrote is not what it recorded the digest of"
        if not can_be(load.reference.weights, wanted, entry.dtype):
            return f"the release's values cannot be written in {entry.dtype}"
    return ""


def _bytes(load: _Load, wanted: Wanted, dtype: str, box: Box, reading: int) -> bytes:
    """What a part has to hold, in a dtype."""
    weights = load.reference.weights
    if wanted.raw is not None and dtype == weights.dtype(wanted.raw):
        width = DTYPES[dtype].bits // 8
        cells = np.frombuffer(weights.raw(wanted.raw), f"V{width}").reshape(wanted.shape)
        return np.ascontiguousarray(part_of(cells, box)).tobytes()
    return encode(part_of(wanted.readings[reading](), box), dtype)


def _wrong_parts(
    load: _Load, wanted: Wanted, entries: list[Entry], digests: dict[tuple[str, tuple[int, ...], str], str]
) -> list[Entry]:
    """The ranks whose part is neither right way of rounding; what is still filled shows elsewhere."""
    right: dict[tuple[str, Box], set[str]] = {}
    wrong = []
    for entry in entries:
        box = entry.box or ((), ())
        key = (entry.dtype, box)
        if key not in right:
            right[key] = {
                hashlib.sha256(_bytes(load, wanted, entry.dtype, box, n)).hexdigest()
                for n in range(len(wanted.readings))
            }
            for digest in right[key]:
                digests.setdefault((entry.dtype, box[1], digest), wanted.name)
        if entry.sha256 not in right[key] and not _is_filled(entry):
            wrong.append(entry)
    if wrong and len(wanted.readings) > 1 and _either(load, wanted, entries):
        return []
    return wrong


def _either(load: _Load, wanted: Wanted, entries: list[Entry]) -> bool:
    """Whether each element is one of two right roundings of a product of block FP8."""
    found = whole_of(entries)
    if found is None:
        return False
    ways = [round_to(read(), entries[0].dtype) for read in wanted.readings]
    return bool(np.all((found == ways[0]) | (found == ways[1])))


def _is_filled(entry: Entry) -> bool:
    return entry.elements > 0 and entry.nonfinite == entry.elements


def _kind(
    load: _Load,
    wanted: Wanted,
    entries: list[Entry],
    wrong: list[Entry],
    digests: dict[tuple[str, tuple[int, ...], str], str],
) -> str:
    """What a difference is, from the whole values; ``values-differ`` where they tell nothing more."""
    first = wrong[0]
    other = digests.get((first.dtype, first.box[1] if first.box else (), first.sha256 or ""))
    if other is not None and other != wanted.name:
        return "permuted"
    bad = {entry.rank for entry in wrong}
    found = whole_of(sorted(entries, key=lambda entry: entry.rank not in bad))
    if found is None:
        return "values-differ"
    right = round_to(wanted.readings[0](), first.dtype)
    return named_difference(right, found)


def _filled(load: _Load) -> Iterator[Flaw]:
    """Nothing still holds the fill, and both loads, after other fills, end with the same bytes."""
    passes = [when for when in LOADS if when in load.moments]
    for name, entries in sorted(load.loadable.items()):
        earlier = {e.rank: e for e in load.moments[passes[0]].get(name, [])} if len(passes) > 1 else {}
        for entry in entries:
            code = _fill_code(load, entry, earlier.get(entry.rank))
            if code:
                yield Flaw("filled", code, {"tensor": name, "rank": entry.rank}, entry.nonfinite, 0.0)
                break
    if len(passes) == 1:
        yield unknown("filled", "one-load", "only one load was recorded, so integers left out look loaded")


def _fill_code(load: _Load, entry: Entry, earlier: Entry | None) -> str:
    if _is_filled(entry):
        return "still-filled"
    wanted = load.reference.wanted.get(entry.name)
    if entry.nonfinite and not (wanted and not np.isfinite(wanted.readings[0]()).all()):
        return "partly-filled"
    return "differs-between-loads" if earlier and earlier.sha256 != entry.sha256 else ""


def _buffers(load: _Load) -> Iterator[Flaw]:
    """Buffers that the model computes are as built, or as the formula gives them."""
    built, first = load.moments.get("built", {}), load.moments.get(LOADS[0], {})
    frequencies = inverse_frequencies(load.reference.weights.config)
    blank = []
    for name, entries in sorted(load.held.items()):
        if entries[0].loadable:
            continue
        shown, reason = _against_records(entries, built.get(name, []), first.get(name, []))
        if not reason and name.endswith(ROTARY):
            told = against_formula(entries[0], frequencies)
            shown, reason = shown or told is not None, told or reason
        if reason:
            yield Flaw("buffers", "buffer-changed", {"tensor": name, "rank": entries[0].rank}, reason)
        elif not shown:
            blank.append(name)
    if blank:
        why = f"{len(blank)} computed buffers have nothing to be held against: {blank[0]}"[:300]
        yield unknown("buffers", "buffer-unknown", why, tensor=blank[0])


def _against_records(entries: list[Entry], built: list[Entry], first: list[Entry]) -> tuple[bool, str]:
    """Whether the records show a buffer's right value, and what they show against it."""
    was = {entry.rank: entry for entry in built if entry.sha256 is not None}
    earlier = {entry.rank: entry for entry in first}
    shown = False
    for entry in entries:
        before = was.get(entry.rank)
        if entry.nonfinite:
            return True, "holds what is not finite"
        if before is not None and before.dtype == entry.dtype:
            shown = True
            if before.sha256 != entry.sha256:
                return True, "differs from when the model was built"
        elif entry.rank in earlier and earlier[entry.rank].sha256 != entry.sha256:
            return True, "differs between two loads"
    return shown, ""


def _disagrees(entry: Entry) -> bool:
    """Whether the values that a rank wrote are not those that it recorded the digest of."""
    if entry.file is None or not entry.stored:
        return False
    return hashlib.sha256(entry.file.raw(entry.stored)).hexdigest() != entry.sha256
