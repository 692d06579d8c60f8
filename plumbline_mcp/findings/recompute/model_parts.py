"""A recorded model beside its release: what holds of it whether it was only built, or loaded as well."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from plumbline_mcp.findings.recompute.answer import Answer, Flaw, Level, unknown
from plumbline_mcp.findings.recompute.decoding import Floats
from plumbline_mcp.findings.recompute.frequencies import ULPS
from plumbline_mcp.findings.recompute.load_reference import Reference, Wanted
from plumbline_mcp.findings.recompute.model_record import Box, Entry, Moments
from plumbline_mcp.findings.recompute.reading import Record

ROTARY = ("rotary_emb.inv_freq", "rotary_emb.original_inv_freq")


@dataclass(frozen=True)
class Held:
    """What the ranks hold at one moment, by name, and what the release makes of it."""

    record: Record
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


def rank_flaws(record: Record, moments: Moments, whens: tuple[str, ...]) -> Iterator[Flaw]:
    """Every rank ended well and recorded the model at one of these moments."""
    for rank in range(record.world_size):
        known = {entry.rank for when in whens for held in moments.get(when, {}).values() for entry in held}
        if not record.ended_well(rank):
            code = "rank-stopped" if record.was_stopped(rank) else "rank-died"
            yield Flaw("ranks", code, {"rank": rank})
        elif rank not in known:
            failed = rank in record.rank_folders and record.recorder_failed(rank)
            code = "recorder-failed" if failed else "nothing-recorded"
            yield unknown("ranks", code, f"rank {rank} left no whole record of the model", rank=rank)


def name_flaws(load: Held) -> Iterator[Flaw]:
    """The model has every tensor that the release makes, and no other."""
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


def pairs(load: Held) -> Iterator[tuple[Wanted, list[Entry]]]:
    """Every parameter that both sides have in one shape, by name."""
    for name, entries in sorted(load.loadable.items()):
        wanted = load.reference.wanted.get(name)
        if wanted is not None and wanted.shape == entries[0].shape:
            yield wanted, entries


def shape_flaws(load: Held) -> Iterator[Flaw]:
    """Every tensor has the shape that the release gives it."""
    for name, entries in sorted(load.loadable.items()):
        wanted = load.reference.wanted.get(name)
        if wanted is not None and wanted.shape != entries[0].shape:
            where = {"tensor": name, "rank": entries[0].rank}
            found, bound = str(list(entries[0].shape)), str(list(wanted.shape))
            yield Flaw("shapes", "shape-differs", where, found, bound, load.level)


def dtype_flaws(answer: Answer, load: Held) -> Iterator[Flaw]:
    """Every tensor has a dtype that the recipe or the release names; counts are measured."""
    counts: Counter[str] = Counter()
    for wanted, entries in pairs(load):
        counts[str(entries[0].line.get("dtype"))] += 1
        wrong = next((entry for entry in entries if entry.dtype not in wanted.dtypes), None)
        if wrong is not None:
            where = {"tensor": wanted.name, "rank": wrong.rank}
            bound = " or ".join(wanted.dtypes)
            yield Flaw("dtypes", "dtype-differs", where, wrong.dtype, bound, load.level)
    for dtype, count in counts.items():
        answer.measured("dtypes", f"tensors in {dtype}", count)


def against_formula(entry: Entry, frequencies: Floats | None) -> str | None:
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


def tie_flaws(load: Held) -> Iterator[Flaw]:
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


def replica_flaws(load: Held) -> Iterator[Flaw]:
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
