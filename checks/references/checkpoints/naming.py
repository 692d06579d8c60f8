"""Names, dtypes and shapes on disk: what the export has to hold against what it holds."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from checks.references.checkpoints.comparing import blocks, compare_codes, compare_values
from checks.references.checkpoints.expectation import HEADS, Expectation, Wanted, embedding_name, is_tied
from checks.references.checkpoints.folder import Checkpoint
from checks.references.checkpoints.layouts import Plain, Rounded
from checks.references.checkpoints.tensors import Tensor
from checks.verdict import Place, Problem

_SHAPE_STEP = "look at how the exporter lays out this tensor; loaders want the release's shape"
_DTYPE_STEP = "save in the release's dtype, or name the framework whose pack documents this format"


@dataclass
class Naming:
    """Problems of the three parts, and the pairs whose values can be compared."""

    names: list[Problem] = field(default_factory=list)
    shapes: list[Problem] = field(default_factory=list)
    dtypes: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pairs: dict[str, tuple[Wanted, Tensor]] = field(default_factory=dict)


def place_of(tensor: Tensor) -> Place:
    """Where a tensor of the export is."""
    return Place(file=tensor.file or None, tensor=tensor.name)


def compare_names(expected: Expectation, original: Checkpoint, export: Checkpoint) -> Naming:
    """Hold raw names, dtypes and shapes against what is wanted."""
    result = Naming()
    missing = {name: entry for name, entry in expected.wanted.items() if name not in export.tensors}
    extra = {name: tensor for name, tensor in export.tensors.items() if name not in expected.wanted}
    _allow_tied_head(result, missing, extra, expected, original, export)
    _find_renamed(result, missing, extra)
    for name, entry in missing.items():
        message = f"{name} is not in the export{_split_by_adapter(name, expected)}"
        wanted = f"{entry.dtype} {list(entry.shape)}"
        result.names.append(
            Problem(
                code="tensor-missing",
                message=message,
                place=Place(tensor=name),
                expected=wanted,
                next_step="look at why the exporter leaves this tensor out, and write it",
            )
        )
    for name, tensor in extra.items():
        message = f"{name} is in the export, not in the release"
        found = f"{tensor.dtype} {list(tensor.shape)}"
        result.names.append(
            Problem(
                code="tensor-unexpected",
                message=message,
                place=place_of(tensor),
                found=found,
                next_step="write the release's name, or leave the tensor out if it is of training alone",
            )
        )
    for name, entry in expected.wanted.items():
        if name in export.tensors:
            _compare_kind(result, entry, export.tensors[name])
    return result


def _split_by_adapter(name: str, expected: Expectation) -> str:
    if name in HEADS and expected.untied_by_adapter:
        return "; the adapter makes the tied head and embedding differ, so both have to be written"
    return ""


def _compare_kind(result: Naming, entry: Wanted, tensor: Tensor) -> None:
    same_shape, same_dtype = tensor.shape == entry.shape, tensor.dtype == entry.dtype
    if not same_shape:
        turned = " (the last two axes are swapped)" if _turned(entry.shape, tensor.shape) else ""
        result.shapes.append(
            Problem(
                code="shape-differs",
                message=f"{entry.name} has another shape{turned}",
                place=place_of(tensor),
                expected=str(list(entry.shape)),
                found=str(list(tensor.shape)),
                next_step=_SHAPE_STEP,
            )
        )
    if not same_dtype:
        result.dtypes.append(
            Problem(
                code="dtype-differs",
                message=f"{entry.name} is stored as {tensor.dtype}, the release has {entry.dtype}",
                place=place_of(tensor),
                expected=entry.dtype,
                found=tensor.dtype,
                next_step=_DTYPE_STEP,
            )
        )
    if same_shape and same_dtype:
        result.pairs[entry.name] = (entry, tensor)
    elif same_shape and entry.can_round and tensor.format.is_float and entry.allowed is None:
        result.pairs[entry.name] = (_in_dtype_of(entry, tensor), tensor)


def _in_dtype_of(entry: Wanted, tensor: Tensor) -> Wanted:
    """The same numbers in the dtype that the export took, so that a cast alone is no difference of values."""
    values = Rounded(entry.values, tensor.format) if tensor.format.bits >= 16 else entry.values
    return replace(entry, dtype=tensor.dtype, values=values, raw=None, exact=None, group=None)


def _turned(wanted: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return len(wanted) >= 2 and found == (*wanted[:-2], wanted[-1], wanted[-2])


def _allow_tied_head(
    result: Naming,
    missing: dict[str, Wanted],
    extra: dict[str, Tensor],
    expected: Expectation,
    original: Checkpoint,
    export: Checkpoint,
) -> None:
    """A head that is the embedding may be written or left out where the configuration ties the two."""
    embedding = embedding_name(export)
    if embedding is None or expected.untied_by_adapter or not is_tied(original.json("config.json") or {}):
        return
    for head in HEADS:
        entry, wanted = missing.get(head), expected.wanted.get(embedding)
        if entry is not None and wanted is not None and _equal(entry, wanted):
            del missing[head]
            result.notes.append(f"{head} is left out: the configuration ties it to {embedding}")
        tensor, other = extra.get(head), export.tensors[embedding]
        if tensor is not None and _identical(other, tensor):
            del extra[head]
            result.notes.append(f"{head} is written out and equals {embedding}, to which it is tied")


def _equal(one: Wanted, other: Wanted) -> bool:
    return one.shape == other.shape and compare_values(one.values, other.values).equal


def _identical(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and compare_codes(one, other).equal


def _find_renamed(result: Naming, missing: dict[str, Wanted], extra: dict[str, Tensor]) -> None:
    """Pair what is missing with what is unexpected where dtype, shape and every value agree."""
    by_kind: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, tensor in extra.items():
        by_kind.setdefault((tensor.dtype, tensor.shape), []).append(name)
    for name, entry in list(missing.items()):
        candidates = by_kind.get((entry.dtype, entry.shape), [])
        match = next(
            (other for other in _likely(name, candidates) if _same_values(entry, extra[other])), None
        )
        if match is None:
            continue
        candidates.remove(match)
        tensor = extra.pop(match)
        del missing[name]
        result.names.append(
            Problem(
                code="tensor-renamed",
                message=f"{name} is in the export under the name {match}",
                place=Place(file=tensor.file or None, tensor=name),
                expected=name,
                found=match,
                next_step="map this name back to the release's where the exporter writes it",
            )
        )


def _likely(name: str, candidates: Iterable[str]) -> list[str]:
    """The most alike first: most renamings change a prefix or a suffix."""

    def shared(other: str) -> int:
        front = next((i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), len(name))
        pairs = zip(reversed(name), reversed(other), strict=False)
        back = next((i for i, (a, b) in enumerate(pairs) if a != b), len(name))
        return -(front + back)

    return sorted(candidates, key=shared)[:8]


def _same_values(entry: Wanted, tensor: Tensor) -> bool:
    if not _same_beginning(entry, tensor):
        return False
    if entry.raw is not None:
        return compare_codes(entry.raw, tensor).equal
    return compare_values(entry.values, Plain(tensor)).equal


def _same_beginning(entry: Wanted, tensor: Tensor) -> bool:
    """Cheap first look, so that a pair that differs is not read whole."""
    if entry.raw is not None and entry.raw.format.bits >= 8:
        return bool(
            (entry.raw.codes(0, min(64, entry.raw.size)) == tensor.codes(0, min(64, tensor.size))).mean()
            > 0.5
        )
    first, last = next(blocks(entry.shape), (0, 0))
    wanted, found = entry.values.rows(first, last)[:1], Plain(tensor).rows(first, min(last, first + 1))
    return bool(wanted.size == 0 or (wanted == found).all())
