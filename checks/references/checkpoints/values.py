"""The values of an export, tensor by tensor, and the question whether an export was trained."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from checks.references.checkpoints.comparing import (
    Comparison,
    blocks,
    compare_bounded,
    compare_codes,
    compare_values,
)
from checks.references.checkpoints.differences import Kind, classify
from checks.references.checkpoints.expectation import Wanted
from checks.references.checkpoints.formats import FORMATS, Floats
from checks.references.checkpoints.grids import coarser_grid
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.layouts import Group, Plain, Rounded, Values, groups
from checks.references.checkpoints.naming import place_of
from checks.references.checkpoints.tensors import Tensor
from checks.rules import COARSE_GRID_TENSORS, TRAINED_SHARE
from checks.verdict import Measurement, Outcome, Place, Problem

Pairs = dict[str, tuple[Wanted, Tensor]]
Tell = Callable[[int, str], None]
"""Told the bytes read of the expected side, and of which tensor."""


@dataclass(frozen=True)
class Mismatch:
    """A tensor whose values are not the wanted ones."""

    entry: Wanted
    tensor: Tensor
    kind: Kind
    compared: Comparison

    @property
    def change(self) -> float:
        """Relative change, 0 where the original is all zero."""
        return self.compared.change or 0.0


@dataclass
class ValuesResult:
    """What comparing all values gave."""

    judged: int = 0
    floats: int = 0
    nbytes: int = 0
    elements: int = 0
    zero_signs: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    worst_merge: tuple[float, str] = (0.0, "")
    merged: int = 0
    blind: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Either:
    """Of two right ways to round, the one that the export took, element by element."""

    values: Values
    second: Values
    found: Values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def rows(self, first: int, last: int) -> Floats:
        """Second where the export has it, else the first."""
        second = self.second.rows(first, last)
        return np.where(second == self.found.rows(first, last), second, self.values.rows(first, last))


def compare_all(pairs: Pairs, config: dict[str, object], tell: Tell) -> ValuesResult:
    """Compare every pair. ``config`` is the export's, for the block sizes of low-precision tensors."""
    result = ValuesResult()
    found_groups = _groups_found(pairs, config, result)
    scales = {entry.group.scale for entry, _ in pairs.values() if entry.group and entry.raw}
    for name, (entry, tensor) in pairs.items():
        if entry.no_reference:
            message = f"{name}: {entry.no_reference}"
            result.problems.append(
                Problem(
                    code="reference-missing",
                    outcome=Outcome.NOT_EVALUATED,
                    message=message,
                    place=place_of(tensor),
                    next_step="name as --trained a checkpoint with it in the release's name and shape",
                )
            )
            continue
        if name in scales and entry.group and entry.group.main in pairs:
            result.judged += 1
            result.nbytes += tensor.nbytes
            continue
        _compare_one(result, entry, tensor, pairs, found_groups, tell)
    _find_exchanged(result)
    return result


def _groups_found(pairs: Pairs, config: dict[str, object], result: ValuesResult) -> dict[str, Group]:
    try:
        return groups({name: tensor for name, (_, tensor) in pairs.items()}, config)
    except Unreadable as error:
        result.notes.append(f"the export's low-precision tensors cannot be decoded: {error}")
        return {}


def _compare_one(
    result: ValuesResult, entry: Wanted, tensor: Tensor, pairs: Pairs, found: dict[str, Group], tell: Tell
) -> None:
    def read(nbytes: int) -> None:
        tell(nbytes, entry.name)

    if entry.raw is not None and entry.group is not None and entry.group.scale in pairs:
        compared, kind = _low_precision(result, entry, tensor, pairs, found, read)
    elif entry.raw is not None:
        compared, kind = _codes(entry, tensor, read)
    elif entry.allowed is not None:
        compared, kind = _merge(result, entry, tensor, read)
    else:
        compared, kind = _numbers(entry, tensor, read)
    result.judged += 1
    result.nbytes += tensor.nbytes
    result.elements += compared.elements
    result.zero_signs += compared.zero_signs
    result.floats += bool(tensor.format.is_float or entry.group)
    if compared.non_finite:
        result.notes.append(
            f"the reference itself holds {compared.non_finite} NaN or infinities in {entry.name}"
        )
    if kind is not None:
        result.mismatches.append(Mismatch(entry, tensor, kind, compared))


def _codes(entry: Wanted, tensor: Tensor, read: Callable[[int], None]) -> tuple[Comparison, Kind | None]:
    """Bit for bit; where the codes differ, how far apart the numbers are says what happened."""
    assert entry.raw is not None  # noqa: S101 - the caller asked for it
    codes = compare_codes(entry.raw, tensor, read)
    if codes.equal:
        return codes, None
    numbers = compare_values(entry.values, Plain(tensor))
    codes = replace(codes, difference2=numbers.difference2, expected2=numbers.expected2)
    return codes, _kind(entry, tensor, numbers)


def _kind(entry: Wanted, tensor: Tensor, numbers: Comparison) -> Kind:
    if entry.unmerged is not None and _equals(entry.unmerged, tensor):
        return Kind("adapter-unmerged", "holds the base weight: the adapter was not merged", structured=True)
    kind = classify(entry.values, Plain(tensor), numbers)
    return kind if tensor.format.is_float else replace(kind, structured=True)


def _equals(values: Values, tensor: Tensor) -> bool:
    return compare_values(Rounded(values, FORMATS[tensor.dtype]), Plain(tensor)).equal


def _low_precision(
    result: ValuesResult,
    entry: Wanted,
    tensor: Tensor,
    pairs: Pairs,
    found: dict[str, Group],
    read: Callable[[int], None],
) -> tuple[Comparison, Kind | None]:
    """Codes and scales bit for bit; where they differ, the numbers they stand for."""
    group = entry.group
    assert group is not None and entry.raw is not None  # noqa: S101, PT018 - the caller asked for it
    wanted_scale, found_scale = pairs[group.scale]
    codes = compare_codes(entry.raw, tensor, read)
    if wanted_scale.raw is not None and codes.equal and compare_codes(wanted_scale.raw, found_scale).equal:
        return codes, None
    if tensor.name not in found:
        how_far = f"{codes.differing} of {codes.elements} codes differ and cannot be decoded"
        return codes, Kind("values-differ", how_far, structured=True)
    numbers = compare_values(group.exact, found[tensor.name].exact)
    if numbers.equal:
        result.notes.append(f"{entry.name} is encoded otherwise, with equal values")
        return numbers, None
    return numbers, classify(group.exact, found[tensor.name].exact, numbers)


def _numbers(entry: Wanted, tensor: Tensor, read: Callable[[int], None]) -> tuple[Comparison, Kind | None]:
    found = Plain(tensor)
    compared = compare_values(entry.values, found, read)
    if not compared.equal and entry.exact is not None:
        compared = compare_values(_Either(entry.values, entry.exact, found), found)
    return compared, None if compared.equal else classify(entry.values, found, compared)


def _merge(
    result: ValuesResult, entry: Wanted, tensor: Tensor, read: Callable[[int], None]
) -> tuple[Comparison, Kind | None]:
    assert entry.allowed is not None and entry.unmerged is not None  # noqa: S101, PT018 - the caller asked for it
    found = Plain(tensor)
    compared, worst = compare_bounded(entry.values, found, entry.allowed)
    read(tensor.nbytes)
    result.merged += 1
    if worst >= result.worst_merge[0]:
        result.worst_merge = (worst, entry.name)
    if not shows_its_merge(entry):
        result.blind.append(entry.name)
    if compared.equal:
        return compared, None
    if _equals(entry.unmerged, tensor):
        return compared, Kind(
            "adapter-unmerged", "holds the base weight: the adapter was not merged", structured=True
        )
    if compared.introduced:
        return compared, Kind(
            "not-finite", f"{compared.introduced} elements are NaN or infinite", structured=True
        )
    share = _share_merged(entry, found)
    message = (
        f"{compared.differing} of {compared.elements} elements are further from W + sBA than rounding"
        f" explains, by up to {worst:.3g} times; the export holds {share:.4g} times the adapter's update"
    )
    return compared, Kind("values-differ", message, structured=True)


def shows_its_merge(entry: Wanted) -> bool:
    """Whether the bound tells the merge from its base: not where the update is lost to rounding."""
    if entry.unmerged is None or entry.allowed is None:
        return False
    return not compare_bounded(entry.values, entry.unmerged, entry.allowed)[0].equal


def _share_merged(entry: Wanted, found: Values) -> float:
    """<found - W, sBA> / <sBA, sBA>: 1 for a right merge, the ratio where the scale is wrong."""
    assert entry.unmerged is not None  # noqa: S101 - the caller asked for it
    product = norm = 0.0
    for first, last in blocks(entry.shape):
        base = entry.unmerged.rows(first, last).astype(np.float64)
        update = (entry.values.rows(first, last) - base).ravel()
        product += float(np.einsum("i,i->", (found.rows(first, last) - base).ravel(), update))
        norm += float(np.einsum("i,i->", update, update))
    return product / norm if norm else 0.0


def _find_exchanged(result: ValuesResult) -> None:
    """Tensors that hold what another one has to hold: experts written one by one in another order."""
    if len(result.mismatches) < 2:
        return
    wanted = {m.entry.raw.digest(): m.entry.name for m in result.mismatches if m.entry.raw is not None}
    for index, mismatch in enumerate(result.mismatches):
        other = wanted.get(mismatch.tensor.digest())
        if other is not None and other != mismatch.entry.name:
            kind = Kind("permuted", f"holds what {other} holds in the original", structured=True)
            result.mismatches[index] = Mismatch(mismatch.entry, mismatch.tensor, kind, mismatch.compared)


def value_problems(
    result: ValuesResult, *, may_be_trained: bool, against_original: bool = True
) -> list[Problem]:
    """The mismatches as problems: faults at their place, one ``looks-trained`` for what training explains.

    ``may_be_trained``: no reference for trained values was given, and all else about the tensors is right.
    Rule: at least `TRAINED_SHARE` of the floating-point tensors differ; those of them that show no structured
    fault and moved by at most `TRAINED_CHANGE` are what training explains. ``against_original``: the values
    were held against the release's, so a trained reference could still be named.
    """
    plain = [mismatch for mismatch in result.mismatches if not mismatch.kind.structured]
    trained = may_be_trained and bool(plain) and len(result.mismatches) >= TRAINED_SHARE * result.floats
    trained = trained and len(result.mismatches) > 1
    problems = [_problem(m, against_original) for m in result.mismatches if m.kind.structured or not trained]
    if trained:
        problems.append(_looks_trained(plain, result.floats))
    return [*problems, *result.problems]


def _problem(mismatch: Mismatch, against_original: bool) -> Problem:
    compared = mismatch.compared
    first = None if compared.first is None else f"first differing element: {_index(mismatch)}"
    return Problem(
        code=mismatch.kind.code,
        message=f"{mismatch.entry.name}: {mismatch.kind.message}",
        place=place_of(mismatch.tensor),
        found=first,
        next_step=_next_step(mismatch, against_original),
    )


def _next_step(mismatch: Mismatch, against_original: bool) -> str:
    """What helps with a difference: training never transposes, permutes or scales a tensor."""
    if mismatch.kind.code in _STEPS:
        return _STEPS[mismatch.kind.code]
    if mismatch.entry.update is not None:
        return "look at the scale (lora_alpha over r) and the dtype in which the adapter is merged"
    if mismatch.kind.structured:
        return "training does not do this: look at how the exporter casts, scales and copies this tensor"
    if against_original:
        return "if this tensor was trained, name the checkpoint that training ended with as --trained"
    return "look at where the exporter takes this tensor from: it is not the one training ended with"


_STEPS = {
    "transposed": "look at the layout in which the exporter writes this tensor, and swap its axes back",
    "permuted": "look at the order in which the exporter writes these slices; restore the release's",
    "not-finite": "look for an overflow where the exporter casts or decodes this tensor",
    "adapter-unmerged": "merge the adapter into this tensor before the export",
}


def _index(mismatch: Mismatch) -> str:
    shape = mismatch.entry.group.values.shape if mismatch.entry.group else mismatch.entry.shape
    first = mismatch.compared.first or 0
    size = int(np.prod(shape, dtype=object)) if shape else 1
    if not shape or first >= size:
        return str(first)
    return str([int(i) for i in np.unravel_index(first, shape)])


def _looks_trained(plain: list[Mismatch], floats: int) -> Problem:
    largest = max(plain, key=lambda mismatch: mismatch.change)
    quantised = _looks_quantised(plain)
    looks = "looks quantised" if quantised else "looks trained"
    return Problem(
        code="looks-trained",
        outcome=Outcome.INCONCLUSIVE,
        message=(
            f"{looks}: {len(plain)} of {floats} floating-point tensors differ, none as a fault would,"
            f"{quantised} the most by a relative change of {largest.change:.3g}"
        ),
        place=Place(file=largest.tensor.file or None, tensor=largest.entry.name),
        next_step=_QUANTISED_STEP if quantised else _TRAINED_STEP,
    )


_TRAINED_STEP = "name the checkpoint that training ended with as --trained, or export after a step at lr 0"
_QUANTISED_STEP = (
    "look for a cast to 8 or 4 bits on the exporter's way and export without it; if the values were trained "
    "too, name the checkpoint that training ended with as --trained"
)


def _looks_quantised(plain: list[Mismatch]) -> str:
    """The coarser grid that most of the largest changed matrices lie on, in words; empty without one."""
    matrices = [mismatch for mismatch in plain if len(mismatch.entry.shape) > 1]
    matrices.sort(key=lambda mismatch: -mismatch.tensor.nbytes)
    looked = matrices[:COARSE_GRID_TENSORS]
    grids = [grid for m in looked if (grid := coarser_grid(m.entry.values, Plain(m.tensor)))]
    if 2 * len(grids) <= len(looked):
        return ""
    shown = max(grids, key=grids.count)
    return f" {len(grids)} of the {len(looked)} largest lie on a coarser grid ({shown}),"


def value_measurements(result: ValuesResult) -> tuple[Measurement, ...]:
    """Measured values against their bounds."""
    differing = sum(m.compared.differing for m in result.mismatches)
    worst = max(result.mismatches, key=lambda m: m.compared.differing, default=None)
    found = [
        Measurement(name="tensors that differ", value=len(result.mismatches), bound=0, unit="tensors"),
        Measurement(
            name="elements that differ",
            value=differing,
            bound=0,
            unit="elements",
            where=worst.entry.name if worst else None,
        ),
        Measurement(name="signs of zero that differ", value=result.zero_signs, unit="elements"),
        Measurement(name="compared", value=result.nbytes, unit="bytes"),
    ]
    if result.merged:
        ratio, where = result.worst_merge
        found.append(
            Measurement(
                name="distance from W + sBA, in units of the bound",
                value=float(f"{ratio:.6g}"),
                bound=1.0,
                rule="MERGE_ROUNDINGS",
                where=where,
            )
        )
    return tuple(found)
