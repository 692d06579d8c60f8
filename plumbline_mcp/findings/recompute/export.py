"""The question of the check *export*, answered anew: is the export the trained model in the release's format?

That the export loads in the reference implementation is not tried here: what a loader misses, ignores or
finds unfit follows from names, shapes and configuration, and these are the release's own or those that the
framework documents. Where they are not, nothing is said about it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.answer import Answer, Flaw, unknown
from plumbline_mcp.findings.recompute.decoding import DTYPES, TORCH, Floats, round_to
from plumbline_mcp.findings.recompute.difference import named_difference
from plumbline_mcp.findings.recompute.export_files import file_flaws
from plumbline_mcp.findings.recompute.merged import Adapter, Change, read_adapter
from plumbline_mcp.findings.recompute.reading import Cannot, Record, TensorFile, place_in, read_json
from plumbline_mcp.findings.recompute.recipe import pack_file, pack_folder
from plumbline_mcp.findings.recompute.release import INDEX, Weights, is_wide

PARTS = (
    "files", "names", "shapes", "dtypes", "values", "adapter", "config", "generation_config", "tokenizer",
    "chat_template", "processor", "reload",
)  # fmt: skip
HEADS = ("lm_head.weight", "head.weight")
TRAINED_SHARE = 0.5
"""A step moves every trained tensor, a fault in an exporter one kind: well below one half of them."""
TRAINED_CHANGE = 0.5
"""||found - original|| / ||original||: a tensor in another's place is at sqrt(2), fine-tuning near 0.03."""


@dataclass(frozen=True)
class _Wanted:
    """A tensor of the export: its dtype and shape, the release's tensor it is, or how its numbers come."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: str | None = None
    coded: str | None = None
    transposed: bool = False
    change: Change | None = None
    replaced: tuple[str, bytes, Floats] | None = None


@dataclass(frozen=True)
class _Sides:
    """Both checkpoints, and what the export's values are held against."""

    original: Weights
    export: Weights
    reference: Weights
    wanted: dict[str, _Wanted] = field(repr=False)
    adapter: Adapter | None = None
    trained: bool = False
    untied: bool = False


def recompute(folder: Path, question: Question) -> Submission:
    """Answer the question. Raises `Cannot`."""
    original = place_in(folder, _named(question, "original"))
    export, record = _export_folder(folder, question)
    answer = Answer(PARTS)
    if isinstance(export, Flaw):
        answer.add([export])
        return answer.submission("")
    release = Weights.open(original)
    pack = pack_folder(folder, question, record)
    declared = {
        each.get("release_format"): each
        for each in pack_file(pack, "settings.toml").get("declared_export", [])
    }
    dropped = bool(release.coded) and all(each.kind in declared for each in release.coded.values())
    weights, flaw = _open_export(export)
    if weights is None:
        answer.add([flaw] if flaw else [])
        if (export / "config.json").exists():
            answer.add(file_flaws(original, export, coded_dropped=dropped, untied=False))
        return answer.submission("")
    sides = _sides(folder, question, release, weights, declared)
    answer.add(_strays(original, export))
    with np.errstate(invalid="ignore", over="ignore"):
        _judge(answer, sides)
    answer.add(file_flaws(original, export, coded_dropped=dropped, untied=sides.untied))
    return answer.submission(f"{len(sides.wanted)} tensors and the small files")


def _named(question: Question, name: str) -> str:
    found = question.inputs.get(name, question.files.get(name))
    if not isinstance(found, str) or not found:
        raise Cannot(f"the question names no {name}")
    return found


def _export_folder(folder: Path, question: Question) -> tuple[Path | Flaw, Record | None]:
    """The folder that was exported, or why there is none."""
    given = question.inputs.get("export", question.records[0] if question.records else None)
    if not isinstance(given, str):
        raise Cannot("the question names no export")
    path = place_in(folder, given)
    if not (path / "job.json").exists():
        return path, None
    record = Record.open(path)
    record.refuse_cancelled()
    ranks = range(record.world_size)
    failed = [rank for rank in ranks if not record.ended_well(rank)]
    failed.sort(key=record.was_stopped)
    if failed:
        where = {"rank": failed[0], "file": f"logs/rank-{failed[0]:05d}.err"}
        return Flaw("files", "exporter-failed", where), record
    output = str(record.job.get("output") or "output")
    for name in record.names(f"{output}/"):
        record.file(name)
    out = path / output
    if not out.is_dir():
        return Flaw("files", "nothing-written", {"file": "model.safetensors"}), record
    loose = [p for p in out.rglob("*") if p.is_symlink() or p.is_file()]
    if any(p.relative_to(path).as_posix() not in record.sealed for p in loose):
        raise Cannot("the export holds a file that was not sealed")
    return place_in(path, output), record


def _open_export(export: Path) -> tuple[Weights | None, Flaw | None]:
    """The export's weights, or the file that keeps them from being read."""
    single = export / "model.safetensors"
    if not (export / INDEX).exists() and not single.exists():
        if (export / "adapter_model.safetensors").exists():
            return None, Flaw("files", "adapter-unmerged", {"file": "adapter_model.safetensors"})
        more = sorted(export.glob("*.safetensors"))
        where = {"file": INDEX if more else single.name}
        return None, Flaw("files", "file-unreadable" if more else "nothing-written", where)
    names = [single.name]
    if (export / INDEX).exists():
        mapped = read_json(export / INDEX)
        names = sorted(set((mapped.get("weight_map") or {}).values())) if isinstance(mapped, dict) else []
    for name in names:
        try:
            TensorFile.open(place_in(export, str(name)))
        except Cannot as reason:
            code = "file-missing" if not (export / str(name)).exists() else "file-unreadable"
            return None, Flaw("files", code, {"file": str(name)}, why=str(reason))
    try:
        return Weights.open(export), None
    except Cannot as reason:
        return None, Flaw("files", "file-unreadable", {"file": INDEX}, why=str(reason))


def _strays(original: Path, export: Path) -> Iterator[Flaw]:
    """Files that a loader reads beside the weights: an adapter, a weight file without an index."""
    known = {path.name for path in original.iterdir()}
    for path in sorted(export.iterdir()):
        adapter = path.name.startswith("adapter_") and path.suffix in (".json", ".safetensors", ".bin", ".pt")
        loose = path.suffix == ".safetensors" and path.name != "model.safetensors"
        loose = loose and not (export / INDEX).exists()
        if (adapter or loose) and path.name not in known:
            yield Flaw("files", "file-unexpected", {"file": path.name})


def _sides(
    folder: Path, question: Question, release: Weights, export: Weights, declared: dict[Any, Any]
) -> _Sides:
    wanted = {one.name: one for one in _released(release, declared)}
    adapter, reference, untied = None, release, False
    if question.inputs.get("adapter"):
        adapter = read_adapter(place_in(folder, _named(question, "adapter")))
        untied = _adapt(wanted, release, adapter)
    trained = bool(question.inputs.get("trained"))
    if trained:
        reference = Weights.open(place_in(folder, _named(question, "trained")))
    return _Sides(release, export, reference, wanted, adapter, trained, untied)


def _released(release: Weights, declared: dict[Any, Any]) -> Iterator[_Wanted]:
    scales = {one.scale: name for name, one in release.coded.items()}
    for name in release.files:
        main = name if name in release.coded else scales.get(name)
        entry = declared.get(release.coded[main].kind) if main is not None else None
        if entry is None or main is None:
            yield _Wanted(name, release.dtype(name), release.shape(name), raw=name, coded=main)
        elif name == main:
            yield _documented(release, name, entry)


def _documented(release: Weights, name: str, entry: dict[str, Any]) -> _Wanted:
    """A low-precision tensor as the framework documents to write it."""
    renamed = name
    for suffix, other in entry.get("names", {}).items():
        if name == suffix or name.endswith(f".{suffix}"):
            renamed = name[: len(name) - len(suffix)] + other
            break
    turned = any(renamed == each or renamed.endswith(f".{each}") for each in entry.get("transposed", []))
    shape = release.decoded_shape(name)
    shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    return _Wanted(renamed, TORCH[entry["exported_as"]], shape, coded=name, transposed=turned)


def _adapt(wanted: dict[str, _Wanted], release: Weights, adapter: Adapter) -> bool:
    """Put the adapter's changes in; whether they untie a tied head. Raises `Cannot`."""
    touched = {*adapter.changes, *adapter.replaced}
    embedding = _embedding(release)
    untied = (
        embedding is not None
        and not any(h in wanted for h in HEADS)
        and bool(touched & {embedding, HEADS[0]})
    )
    if untied and embedding is not None:
        wanted[HEADS[0]] = replace(wanted[embedding], name=HEADS[0])
    for name in touched:
        one = wanted.get(name)
        if one is None or not is_wide(one.dtype):
            raise Cannot(f"the adapter changes {name[:200]}, which the release does not hold as numbers")
        change, whole = adapter.changes.get(name), adapter.replaced.get(name)
        shape = (change.left.shape[0], change.right.shape[1]) if change else whole[2].shape if whole else ()
        if shape != one.shape:
            raise Cannot(f"the adapter's {name[:200]} is {list(shape)}, the release's {list(one.shape)}")
        wanted[name] = replace(one, change=change, replaced=whole)
    return untied


def _embedding(weights: Weights) -> str | None:
    ends = ("embed_tokens.weight", "wte.weight", "embed.weight", "word_embeddings.weight")
    return next((n for n in weights.files if any(n == e or n.endswith(f".{e}") for e in ends)), None)


def _judge(answer: Answer, sides: _Sides) -> None:
    naming = list(_names(sides))
    answer.add(naming)
    kinds = list(_kinds(sides))
    answer.add(kinds)
    answer.add(_values(answer, sides, plain=not naming and not kinds))


def _names(sides: _Sides) -> Iterator[Flaw]:
    held = set(sides.export.files)
    missing = [name for name in sides.wanted if name not in held]
    extra = [name for name in sides.export.files if name not in sides.wanted]
    _allow_tied(sides, missing, extra)
    for name in list(missing):
        one = sides.wanted[name]
        alike = [
            n for n in extra
            if (sides.export.dtype(n), sides.export.shape(n)) == (one.dtype, one.shape)
            and np.array_equal(_wanted_numbers(sides, one), sides.export.plain(n), equal_nan=True)
        ]  # fmt: skip
        if alike:
            match = min(alike, key=lambda other: (-_common(name, other), other))
            missing.remove(name)
            extra.remove(match)
            where = {"tensor": name, "file": sides.export.files[match].path.name}
            yield Flaw("names", "tensor-renamed", where, match, name)
    for name in missing:
        yield Flaw("names", "tensor-missing", {"tensor": name})
    for name in extra:
        where = {"tensor": name, "file": sides.export.files[name].path.name}
        yield Flaw("names", "tensor-unexpected", where)


def _common(one: str, other: str) -> int:
    """Characters shared at the front and at the back."""
    front = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    ends = zip(reversed(one), reversed(other), strict=False)
    return front + next((i for i, (a, b) in enumerate(ends) if a != b), len(one))


def _allow_tied(sides: _Sides, missing: list[str], extra: list[str]) -> None:
    """A head that is the embedding may be written or not where the configuration ties the two."""
    inner = sides.original.config.get("text_config")
    below = inner.get("tie_word_embeddings") if isinstance(inner, dict) else None
    if sides.original.config.get("tie_word_embeddings", below) is not True or sides.untied:
        return
    embedding = _embedding(sides.export)
    if embedding is None:
        return
    for head in HEADS:
        if head in missing and embedding in sides.wanted:
            one, other = (_numbers(sides, sides.wanted[name]) for name in (head, embedding))
            if np.array_equal(one, other, equal_nan=True):
                missing.remove(head)
        if head in extra and sides.export.raw(head) == sides.export.raw(embedding):
            extra.remove(head)


def _kinds(sides: _Sides) -> Iterator[Flaw]:
    shapes, dtypes = list[Flaw](), list[Flaw]()
    for name, one in sides.wanted.items():
        if name not in sides.export.files:
            continue
        where = {"tensor": name, "file": sides.export.files[name].path.name}
        shape, dtype = sides.export.shape(name), sides.export.dtype(name)
        if shape != one.shape:
            shapes.append(Flaw("shapes", "shape-differs", where, str(list(shape)), str(list(one.shape))))
        if dtype != one.dtype:
            dtypes.append(Flaw("dtypes", "dtype-differs", where, dtype, one.dtype))
    yield from (*shapes, *dtypes)


def _wanted_numbers(sides: _Sides, one: _Wanted) -> Floats:
    """The values as they are written."""
    values = _numbers(sides, one)
    return round_to(values, one.dtype) if is_wide(one.dtype) else values


def _numbers(sides: _Sides, one: _Wanted, *, single: bool = False) -> Floats:
    """The values that a tensor has to hold, in float64 and not yet rounded."""
    source = sides.reference if sides.trained else sides.original
    if sides.trained:
        if one.name not in source.files or source.shape(one.name) != one.shape:
            raise Cannot(f"the checkpoint that training ended with has no {one.name[:200]} of that shape")
        return source.plain(one.name)
    if one.replaced is not None:
        base = one.replaced[2]
    elif one.raw is None and one.coded:
        base = sides.original.numbers(one.coded, single=single)
        base = np.swapaxes(base, -1, -2) if one.transposed else base
    else:
        base = sides.original.plain(one.raw or one.name)
    return base + one.change.product() if one.change is not None else base


def _values(answer: Answer, sides: _Sides, *, plain: bool) -> Iterator[Flaw]:
    wrong: list[tuple[Flaw, bool]] = []
    elements = signs = size = floats = 0
    scales = {one.scale for one in sides.original.coded.values()}
    for name, one in sides.wanted.items():
        if name not in sides.export.files or sides.export.shape(name) != one.shape:
            continue
        try:
            found = _compared(sides, one)
        except Cannot as reason:
            yield unknown("values", "reference-missing", f"{name}: {reason}"[:300], tensor=name)
            continue
        if found is None:
            continue
        if one.change is not None and not sides.trained and not _shows_merge(sides, one):
            yield unknown("adapter", "adapter-without-effect", f"{name} shows no merge", tensor=name)
        size += len(sides.export.raw(name))
        differing, zeros, flaw, structured = found
        floats += not (name in scales and one.raw is not None)
        elements, signs = elements + differing, signs + zeros
        if flaw is not None:
            wrong.append((flaw, structured))
    exchanged = {flaw.where["tensor"] for flaw, _ in wrong if len(wrong) > 1 and _elsewhere(sides, flaw)}
    loose = [flaw for flaw, structured in wrong if not structured and flaw.where["tensor"] not in exchanged]
    may = plain and not sides.trained and sides.adapter is None and len(wrong) > 1 and bool(loose)
    trained = may and len(wrong) >= TRAINED_SHARE * floats
    for flaw, structured in wrong:
        swapped = flaw.where["tensor"] in exchanged
        if structured or swapped or not trained:
            yield Flaw("values", "permuted" if swapped else flaw.code, flaw.where, flaw.value, flaw.bound)
    if trained:
        yield unknown("values", "looks-trained", f"{len(loose)} tensors differ, none as a fault would")
    answer.measured("values", "tensors that differ", len(wrong))
    answer.measured("values", "elements that differ", elements)
    answer.measured("values", "signs of zero that differ", signs)
    answer.measured("values", "compared", size)


def _elsewhere(sides: _Sides, flaw: Flaw) -> bool:
    """Whether a tensor holds the bytes that another tensor of its shape has to hold."""
    name = str(flaw.where["tensor"])
    raw, source = sides.export.raw(name), sides.reference if sides.trained else sides.original
    kind = (sides.export.dtype(name), sides.export.shape(name))
    alike = (n for n in source.files if n != name and (source.dtype(n), source.shape(n)) == kind)
    return any(source.raw(other) == raw for other in alike)


def _compared(sides: _Sides, one: _Wanted) -> tuple[int, int, Flaw | None, bool] | None:
    """(elements that differ, signs of zero that do, what differs, whether no training would do it)."""
    dtype = sides.export.dtype(one.name)
    same = dtype == one.dtype
    if not same and not (
        is_wide(one.dtype) and DTYPES.get(dtype, DTYPES["U8"]).is_float and one.change is None
    ):
        return None
    if one.raw is not None and one.coded is not None and not sides.trained:
        return _low_precision(sides, one)
    found = sides.export.plain(one.name)
    if one.change is not None and not sides.trained:
        return _merge(sides, one, found, dtype)
    ways = [round_to(_numbers(sides, one), dtype)]
    if one.raw is None and one.coded is not None:
        ways.append(round_to(_numbers(sides, one, single=True), dtype))
    right = np.where(found == ways[-1], ways[-1], ways[0])
    equal = (found == right) | (np.isnan(found) & np.isnan(right))
    zeros = int((equal & (found == 0) & (np.signbit(found) != np.signbit(right))).sum())
    if equal.all():
        return 0, zeros, None, False
    return int((~equal).sum()), zeros, *_difference(sides, one, right, found)


def _difference(sides: _Sides, one: _Wanted, right: Floats, found: Floats) -> tuple[Flaw, bool]:
    code = named_difference(right, found)
    size = float(np.linalg.norm(right))
    change = float(np.linalg.norm(found - right)) / size if size else math.inf
    scale = float((found * right).sum()) / size**2 if size else 0.0
    beside = float(np.linalg.norm(found - scale * right)) / size if size else math.inf
    scaled = abs(scale - 1) >= 0.02 and beside <= 2.0**-7
    structured = code != "values-differ" or scaled or not change <= TRAINED_CHANGE
    structured = structured or not is_wide(sides.export.dtype(one.name))
    if not np.isfinite(found).all() and np.isfinite(right).all():
        code, structured = "not-finite", True
    code = code if code in ("transposed", "permuted", "not-finite") else "values-differ"
    where = {"tensor": one.name, "file": sides.export.files[one.name].path.name}
    return Flaw("values", code, where, change, 0.0), structured


def _low_precision(sides: _Sides, one: _Wanted) -> tuple[int, int, Flaw | None, bool] | None:
    """Codes and scales as they are, or the numbers that they stand for (an encoding is not unique)."""
    main = one.coded or one.name
    scale = sides.original.coded[main].scale
    pair = [name for name in (main, scale) if name in sides.export.files]
    if one.name != main and len(pair) == 2:
        return 0, 0, None, False
    if all(sides.export.raw(name) == sides.original.raw(name) for name in pair):
        return 0, 0, None, False
    if main not in sides.export.coded:
        differing = np.frombuffer(sides.export.raw(one.name), np.uint8)
        count = int((differing != np.frombuffer(sides.original.raw(one.name), np.uint8)).sum())
        return count, 0, Flaw("values", "values-differ", {"tensor": one.name}, float(count), 0.0), True
    right, found = sides.original.numbers(main), sides.export.numbers(main)
    equal = found == right
    if equal.all():
        return 0, 0, None, False
    return int((~equal).sum()), 0, *_difference(sides, one, right, found)


def _shows_merge(sides: _Sides, one: _Wanted) -> bool:
    """Whether the base alone lies outside of what a merge may be, so that a merge can be told from it."""
    if one.change is None:
        return True
    right = _numbers(sides, one)
    base = right - one.change.product()
    return bool((np.abs(base - right) > one.change.room(right, one.dtype)).any())


def _merge(sides: _Sides, one: _Wanted, found: Floats, dtype: str) -> tuple[int, int, Flaw | None, bool]:
    """W + sBA within the rounding of a merge; the base alone is an adapter that was not merged."""
    right = _numbers(sides, one)
    change = one.change
    assert change is not None  # noqa: S101 - the caller asked for it
    outside = ~(np.abs(found - right) <= change.room(right, dtype))
    if not outside.any():
        return 0, 0, None, False
    base = round_to(right - change.product(), dtype)
    code = "adapter-unmerged" if np.array_equal(base, found) else "values-differ"
    where = {"tensor": one.name, "file": sides.export.files[one.name].path.name}
    size = float(np.linalg.norm(right))
    off = float(np.linalg.norm(found - right)) / size if size else math.inf
    return int(outside.sum()), 0, Flaw("values", code, where, off, 0.0), True
