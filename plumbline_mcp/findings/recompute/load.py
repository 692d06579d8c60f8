"""The question of the check *load*, answered anew: does every tensor equal the original after the load?"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.answer import Answer, Flaw, Level, unknown
from plumbline_mcp.findings.recompute.decoding import DTYPES, Floats, encode, round_to
from plumbline_mcp.findings.recompute.difference import named_difference
from plumbline_mcp.findings.recompute.frequencies import ULPS, inverse_frequencies
from plumbline_mcp.findings.recompute.load_reference import (
    Reference,
    Wanted,
    can_be,
    reference_of,
    require_readable,
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
from plumbline_mcp.findings.recompute.reading import Cannot, Record, first_record, place_in
from plumbline_mcp.findings.recompute.recipe import pack_folder
from plumbline_mcp.findings.recompute.release import Weights

PARTS = ("ranks", "names", "shapes", "dtypes", "values", "filled", "buffers", "ties", "replicas")
LOADS = ("loaded-1", "loaded-2")


@dataclass(frozen=True)
class _Load:
    """A recorded load beside the release; ``held`` is what the last load left."""

    record: Record
    moments: Moments = field(repr=False)
    held: dict[str, list[Entry]] = field(repr=False)
    reference: Reference = field(repr=False)

    @property
    def loadable(self) -> dict[str, list[Entry]]:
        """Parameters and saved buffers."""
        return {name: entries for name, entries in self.held.items() if entries[0].loadable}

    @property
    def level(self) -> Level:
        """What a misfit means: of a model type that the map does not cover it decides nothing."""
        return "fail" if self.reference.covers else "inconclusive"


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
    answer.add(_ranks(record, moments))
    last = next((when for when in reversed(LOADS) if when in moments), None)
    if last is None:
        answer.add([unknown("names", "nothing-recorded", "no rank recorded a loaded model")])
        return answer.submission("")
    versions = distributions(record)
    pack = pack_folder(folder, question, record)
    names = NamesMap.of(pack, str(weights.config.get("model_type", "")), versions)
    reference = reference_of(weights, names, record.settings.get("dtype"), moments[last])
    load = _Load(record, moments, moments[last], reference)
    with np.errstate(invalid="ignore", over="ignore"):
        _judge(answer, load)
    return answer.submission(f"{len(load.loadable)} tensors of {record.world_size} ranks")


def _judge(answer: Answer, load: _Load) -> None:
    answer.add(_names(load))
    answer.add(_shapes(load))
    answer.add(_dtypes(answer, load))
    answer.add(_values(answer, load))
    answer.add(_filled(load))
    answer.add(_buffers(load))
    answer.add(_ties(load))
    answer.add(_replicas(load))


def _ranks(record: Record, moments: Moments) -> Iterator[Flaw]:
    for rank in range(record.world_size):
        known = {entry.rank for when in LOADS for held in moments.get(when, {}).values() for entry in held}
        if not record.ended_well(rank):
            code = "rank-stopped" if record.was_stopped(rank) else "rank-died"
            yield Flaw("ranks", code, {"rank": rank})
        elif rank not in known:
            failed = rank in record.rank_folders and record.recorder_failed(rank)
            code = "recorder-failed" if failed else "nothing-recorded"
            yield unknown("ranks", code, f"rank {rank} left no whole record of a load", rank=rank)


def _names(load: _Load) -> Iterator[Flaw]:
    model, reference = load.loadable, load.reference
    computed = any(n.endswith("rotary_emb.inv_freq") and not e[0].loadable for n, e in load.held.items())
    head = reference.tied[1] if reference.tied else None
    for name in reference.wanted:
        stored = computed and name.endswith("rotary_emb.inv_freq")
        if name not in model and name not in reference.unbuilt and name != head and not stored:
            yield Flaw(
                "names", "tensor-missing", {"tensor": name}, level=load.level, why=f"{name} is missing"
            )
    for name in sorted(model):
        if name not in reference.wanted:
            yield Flaw("names", "tensor-unexpected", {"tensor": name}, level=load.level, why=f"no {name}")


def _pairs(load: _Load) -> Iterator[tuple[Wanted, list[Entry]]]:
    """Every parameter that both sides have in one shape, by name."""
    for name, entries in sorted(load.loadable.items()):
        wanted = load.reference.wanted.get(name)
        if wanted is not None and wanted.shape == entries[0].shape:
            yield wanted, entries


def _shapes(load: _Load) -> Iterator[Flaw]:
    for name, entries in sorted(load.loadable.items()):
        wanted = load.reference.wanted.get(name)
        if wanted is not None and wanted.shape != entries[0].shape:
            where = {"tensor": name, "rank": entries[0].rank}
            found, bound = str(list(entries[0].shape)), str(list(wanted.shape))
            yield Flaw("shapes", "shape-differs", where, found, bound, load.level)


def _dtypes(answer: Answer, load: _Load) -> Iterator[Flaw]:
    counts: Counter[str] = Counter()
    for wanted, entries in _pairs(load):
        counts[str(entries[0].line.get("dtype"))] += 1
        wrong = next((entry for entry in entries if entry.dtype not in wanted.dtypes), None)
        if wrong is not None:
            where = {"tensor": wanted.name, "rank": wrong.rank}
            bound = " or ".join(wanted.dtypes)
            yield Flaw("dtypes", "dtype-differs", where, wrong.dtype, bound, load.level)
    for dtype, count in counts.items():
        answer.measured("dtypes", f"tensors in {dtype}", count)


def _values(answer: Answer, load: _Load) -> Iterator[Flaw]:
    """Every part of every tensor has the bytes of the release's values."""
    digests: dict[tuple[str, tuple[int, ...], str], str] = {}
    suspects: list[tuple[Wanted, list[Entry], list[Entry]]] = []
    elements = 0
    for wanted, entries in _pairs(load):
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
        if not reason and name.endswith(("rotary_emb.inv_freq", "rotary_emb.original_inv_freq")):
            told = _against_formula(entries[0], frequencies)
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


def _against_formula(entry: Entry, frequencies: Floats | None) -> str | None:
    """Why a rotary buffer is not its formula's, empty where it is; None where there is none to compare."""
    values, sampled = entry.values(), entry.sample()
    if frequencies is None or entry.dtype != "F32" or (values is None and sampled is None):
        return None
    if entry.shape != frequencies.shape:
        return "has another length than the configuration gives"
    wanted = frequencies
    if values is None and sampled is not None:
        wanted, values = frequencies[:: sampled[0]], sampled[1]
    allowed = ULPS * 2.0**-23 * np.abs(wanted)
    same = (
        values is not None
        and values.shape == wanted.shape
        and bool(np.all(np.abs(values - wanted) <= allowed))
    )
    return "" if same else "is not what the configuration gives"


def _ties(load: _Load) -> Iterator[Flaw]:
    """What the configuration ties shares memory, and nothing else does."""
    tied = load.reference.tied
    if tied is not None:
        embedding, head = tied
        partners = {entry.rank: entry for entry in load.held.get(embedding, [])}
        if head not in load.held:
            yield unknown("ties", "head-not-recorded", f"the model has no {head}", tensor=head)
        for entry in load.held.get(head, []):
            partner = partners.get(entry.rank)
            shares = entry.same_as == embedding or (partner is not None and partner.same_as == head)
            if not shares and entry.elements:
                yield Flaw("ties", "not-tied", {"tensor": head, "rank": entry.rank})
                break
    for name, entries in sorted(load.loadable.items()):
        shared = next((e for e in entries if e.same_as and {name, e.same_as} != set(tied or ())), None)
        if shared is not None:
            where = {"tensor": name, "rank": shared.rank}
            yield Flaw("ties", "storage-shared", where, str(shared.same_as)[:200])


def _replicas(load: _Load) -> Iterator[Flaw]:
    """Every rank has every tensor, and one part is the same wherever it is held."""
    ranks = {entry.rank for entries in load.held.values() for entry in entries}
    for name, entries in sorted(load.held.items()):
        absent = ranks - {entry.rank for entry in entries}
        if absent:
            yield Flaw("replicas", "tensor-absent", {"tensor": name, "rank": min(absent)})
            continue
        first: dict[Box | None, Entry] = {}
        for entry in entries:
            known = first.setdefault(entry.box, entry)
            if (entry.dtype, entry.sha256) != (known.dtype, known.sha256):
                where = {"tensor": name, "rank": entry.rank}
                yield Flaw(
                    "replicas", "replicas-differ", where, str(entry.sha256)[:12], str(known.sha256)[:12]
                )
                break


def _disagrees(entry: Entry) -> bool:
    """Whether the values that a rank wrote are not those that it recorded the digest of."""
    if entry.file is None or not entry.stored:
        return False
    return hashlib.sha256(entry.file.raw(entry.stored)).hexdigest() != entry.sha256
