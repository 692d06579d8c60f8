"""What every rank recorded of its training steps, read from the raw files of a run (docs/run-folder.md)."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import DTYPES, TORCH, Floats, encode
from plumbline_mcp.findings.recompute.reading import MAX_ELEMENTS, Cannot, Record, TensorFile, lengths, number

Line = dict[str, Any]
_PER_TOKEN = ("logprob", "logsumexp", "logit_mean", "token_weight", "token_residual")


@dataclass(frozen=True)
class Full:
    """The tensors of one step on one rank. ``shifted``: labels lie where their logits do."""

    file: TensorFile
    strides: dict[str, int] = field(repr=False)
    placements: dict[str, dict[str, Any]] = field(repr=False)
    shifted: bool
    transposed: frozenset[str]

    def has(self, name: str) -> bool:
        """Whether a tensor was recorded."""
        return name in self.file.entries

    def array(self, name: str) -> Floats:
        """float64[shape] of a tensor."""
        return self.file.array(name)

    def offset(self, parameter: str) -> tuple[int, ...] | None:
        """Where the local part lies in the whole; None for a whole parameter and where nothing says."""
        found = self.placements.get(parameter, {}).get("offset")
        return None if found is None else lengths(found, f"{parameter}, offset")

    def is_lost(self, parameter: str) -> bool:
        """Whether the record does not tell where a part lies."""
        return parameter in self.placements and self.placements[parameter].get("offset") is None

    def is_shard(self, parameter: str) -> bool:
        """Whether the rank holds a part of the parameter."""
        kinds = self.placements.get(parameter, {}).get("kinds") or ()
        return any(str(kind).startswith(("shard", "strided")) for kind in kinds)

    @cached_property
    def stepped(self) -> list[str]:
        """Parameters with a value before the step."""
        return [name[7:] for name in self.file.entries if name.startswith("before.")]

    @cached_property
    def batches(self) -> int:
        """Number of micro-batches with tensors. Raises `Cannot` where one between them is missing."""
        numbers = {int(part) for part in (n.split(".")[1] for n in self._micro) if part.isdecimal()}
        if numbers != set(range(len(numbers))):
            raise Cannot("a step's file lacks a micro-batch between others")
        return len(numbers)

    @cached_property
    def modules(self) -> list[str]:
        """Linear layers whose inputs and output gradients were recorded."""
        parts = (name.split(".", 3) for name in self._micro)
        return sorted({p[3].rpartition(".")[0] for p in parts if len(p) == 4 and p[2] == "witness"})

    @cached_property
    def _micro(self) -> list[str]:
        return [name for name in self.file.entries if name.startswith("micro.")]

    @cached_property
    def _state(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.file.entries:
            if name.startswith("state."):
                place, _, key = name.rpartition(".")
                found.setdefault(place, []).append(key)
        return found

    def state(self, when: str, parameter: str) -> list[str]:
        """Keys of a parameter's optimizer state before or after the step."""
        return self._state.get(f"state.{when}.{parameter}", [])


@dataclass(frozen=True)
class Rank:
    """One rank: ``lines`` a merged line a step, ``logged`` numbers by step, ``models`` by moment and name.

    ``skipped``: steps that a gradient scaler left out, because a gradient was not finite; ``partly``: those
    that it left out for one optimizer while another one stepped.
    """

    number: int
    lines: dict[int, Line] = field(repr=False)
    logged: dict[int, dict[str, float]] = field(repr=False)
    full: dict[int, Full] = field(repr=False)
    models: dict[str, dict[str, Line]] = field(repr=False)
    failed: bool = False
    skipped: frozenset[int] = frozenset()
    partly: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Run:
    """Every rank of a run in order."""

    record: Record
    ranks: tuple[Rank, ...]

    @cached_property
    def steps(self) -> list[int]:
        """Every step that a rank recorded."""
        return sorted({step for rank in self.ranks for step in rank.lines})

    @cached_property
    def full_steps(self) -> list[int]:
        """Steps that every rank recorded in full and made with all of its optimizers."""
        found = [set(rank.full) - rank.skipped - rank.partly for rank in self.ranks]
        return sorted(set.intersection(*found)) if found else []

    def lines(self, step: int) -> list[tuple[int, Line]]:
        """(rank, line) of a step."""
        return [(rank.number, rank.lines[step]) for rank in self.ranks if step in rank.lines]

    def files(self, step: int) -> list[tuple[int, Full]]:
        """(rank, tensors) of a step recorded in full."""
        return [(rank.number, rank.full[step]) for rank in self.ranks if step in rank.full]

    @cached_property
    def parameters(self) -> dict[str, Line]:
        """The parameters as the first rank listed them."""
        for when in ("start", "built", "loaded-2", "loaded-1", "end"):
            if self.ranks and self.ranks[0].models.get(when):
                return self.ranks[0].models[when]
        return {}

    @cached_property
    def masters(self) -> dict[str, str]:
        """Wider copies that the optimizer holds: the copy's name to the model's parameter it is a copy of."""
        return dict(_masters(self)) if self.ranks and self.full_steps[:1] == [1] else {}

    def model_name(self, name: str) -> str:
        """The model's own name of what the optimizer holds."""
        return self.masters.get(name, name)

    def pieces(self, step: int) -> Iterator[tuple[str, list[tuple[int, Full]]]]:
        """Every distinct part of every stepped parameter with the ranks that hold it."""
        found: dict[tuple[Any, ...], list[tuple[int, Full]]] = {}
        for rank, full in self.files(step):
            for name in full.stepped:
                alone = rank if full.is_lost(name) else None
                found.setdefault((name, full.offset(name), alone), []).append((rank, full))
        yield from ((key[0], holders) for key, holders in found.items())

    def assembled(self, step: int, parameter: str, name: str) -> Floats | None:
        """float64[shape] of a whole tensor from the ranks' parts; None where parts are missing."""
        whole: Floats | None = None
        boxes: set[tuple[int, ...]] = set()
        filled = 0
        for _, full in self.files(step):
            if not full.has(name) or name in full.strides:
                continue
            offset = full.offset(parameter)
            if not full.is_shard(parameter):
                return full.array(name)
            about = self.parameters.get(parameter)
            shape = lengths(about.get("shape"), parameter) if about else ()
            if offset is None or not shape or math.prod(shape) > MAX_ELEMENTS:
                return None
            part = full.array(name)
            whole = np.full(shape, np.nan) if whole is None else whole
            box = tuple(slice(at, at + size) for at, size in zip(offset, part.shape, strict=True))
            if whole[box].shape != part.shape:
                return None
            whole[box] = part
            filled += 0 if offset in boxes else part.size
            boxes.add(offset)
        return whole if whole is not None and filled == whole.size else None


def _masters(run: Run) -> Iterator[tuple[str, str]]:
    """A float32 copy whose first value rounds to the bytes of a narrower parameter that training moves."""
    first = run.ranks[0]
    full, start, end = first.full[1], first.models.get("start", {}), first.models.get("end", {})
    free = {
        name: line
        for name, line in start.items()
        if not full.has(f"before.{name}")
        and line.get("dtype") in ("bfloat16", "float16")
        and line.get("sha256")
    }
    if all(end.get(name, {}).get("sha256") == line["sha256"] for name, line in free.items()):
        return
    for copy in full.stepped:
        name = f"before.{copy}"
        if not copy.startswith("unowned.") or full.file.dtype(name) != "F32" or name in full.strides:
            continue
        values = full.array(name)
        for model, line in free.items():
            if tuple(line.get("shape", ())) == values.shape and _digest(values, line) == line["sha256"]:
                yield copy, model
                del free[model]
                break


def _digest(values: Floats, line: Line) -> str:
    return hashlib.sha256(encode(values.reshape(-1), TORCH[line["dtype"]])).hexdigest()


def read_run(record: Record) -> Run:
    """Every rank's records. Raises `Cannot` where they do not hold together."""
    ranks = [_rank(record, number, folder) for number, folder in sorted(record.rank_folders.items())]
    return Run(record, tuple(ranks))


def _rank(record: Record, rank: int, folder: str) -> Rank:
    lines: dict[int, Line] = {}
    for line in record.lines(f"{folder}/steps.jsonl"):
        step = line.get("step")
        if type(step) is not int or step < 0:
            raise Cannot(f"{folder}/steps.jsonl holds a line without a step")
        lines[step] = _together(lines[step], line) if step in lines else _checked(folder, line)
    logged: dict[int, dict[str, float]] = {}
    left_out = set[int]()
    for event in record.lines(f"{folder}/events.jsonl"):
        values, step = event.get("values"), event.get("step")
        if event.get("event") == "logged" and type(step) is int and isinstance(values, dict):
            told = {key: found for key, value in values.items() if (found := number(value)) is not None}
            logged.setdefault(step, {}).update(told)
        if event.get("event") == "skipped" and type(step) is int:
            left_out.add(step)
    models: dict[str, dict[str, Line]] = {}
    for line in record.lines(f"{folder}/model.jsonl"):
        if line.get("kind", "parameter") == "parameter":
            models.setdefault(str(line.get("when")), {})[str(line.get("name"))] = line
    full = {}
    for name in record.names(f"{folder}/step-"):
        digits = name.rpartition("/step-")[2].removesuffix(".safetensors")
        if name.endswith(".safetensors") and digits.isdecimal():
            full[int(digits)] = _full(record, name, rank, lines.get(int(digits)))
    failed = record.recorder_failed(rank)
    skipped, partly = frozenset(left_out - lines.keys()), frozenset(left_out & lines.keys())
    return Rank(rank, dict(sorted(lines.items())), logged, full, models, failed, skipped, partly)


def _checked(folder: str, line: Line) -> Line:
    """A line whose lists and tables are lists and tables."""
    groups, batches = line.get("groups") or [], line.get("micro_batches") or []
    squares = line.get("gradient_squares_raw") or {}
    fits = isinstance(groups, list) and isinstance(batches, list) and isinstance(squares, dict)
    clip = line.get("clip")
    if not fits or not all(isinstance(each, dict) for each in [*groups, *batches, clip or {}]):
        raise Cannot(f"{folder}/steps.jsonl: the line of step {line.get('step')} does not fit its format")
    numbers = {str(name): number(value) for name, value in squares.items()}
    if any(value is None or value < 0 for value in numbers.values()):
        raise Cannot(f"{folder}/steps.jsonl: a sum of squares is no number of that kind")
    for group in groups:
        names = group.get("params")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Cannot(f"{folder}/steps.jsonl: a group lists no parameters")
    return {**line, "groups": groups, "micro_batches": batches, "squares": numbers}


def _together(first: Line, second: Line) -> Line:
    """Optimizers that step together are one step with the groups of all."""
    second = _checked("records", second)
    return {
        **first,
        "groups": [*first["groups"], *second["groups"]],
        "micro_batches": first["micro_batches"] or second["micro_batches"],
        "clip": first.get("clip") or second.get("clip"),
        "squares": {**second["squares"], **first["squares"]},
    }


def _full(record: Record, name: str, rank: int, line: Line | None) -> Full:
    file = TensorFile.open(record.file(name))
    about = file.metadata
    if (about.get("format"), about.get("version"), about.get("rank")) != ("plumbline-step", "1", str(rank)):
        raise Cannot(f"{name} does not say that it is a step's record of rank {rank}")
    samples, placements = _table(name, about.get("samples")), _table(name, about.get("placements"))
    strides = {key: int(value.get("stride", 1)) for key, value in samples.items()}
    transposed = _loaded(name, about.get("transposed") or "[]")
    full = Full(
        file, strides, placements, about.get("labels") == "shifted",
        frozenset(str(each) for each in transposed) if isinstance(transposed, list) else frozenset(),
    )  # fmt: skip
    _require_fit(name, full, line)
    return full


def _loaded(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Cannot(f"{name}: its metadata is no JSON") from error


def _table(name: str, text: str | None) -> dict[str, dict[str, Any]]:
    raw = _loaded(name, text or "{}")
    if not isinstance(raw, dict):
        raise Cannot(f"{name}: its metadata holds no table")
    return {str(key): value for key, value in raw.items() if isinstance(value, dict)}


def _require_fit(name: str, full: Full, line: Line | None) -> None:
    """Tensors that belong together have shapes that do. Raises `Cannot`."""
    if line is not None and full.batches and full.batches != len(line["micro_batches"]):
        raise Cannot(f"{name} has another number of micro-batches than its line in steps.jsonl")
    for batch in range(full.batches):
        labels = full.file.entries.get(f"micro.{batch}.labels")
        for kind in _PER_TOKEN:
            other = full.file.entries.get(f"micro.{batch}.{kind}")
            if labels and other and (len(labels[1]) != 2 or other[1] != labels[1]):
                raise Cannot(f"{name}: micro.{batch}.{kind} does not fit its labels")
    for parameter in full.stepped:
        before = full.file.entries[f"before.{parameter}"]
        if before[0] not in DTYPES or not DTYPES[before[0]].is_float:
            raise Cannot(f"{name}: {parameter} is {before[0]}, no float")
        for kind in ("after", "grad.raw", "grad.used"):
            other = full.file.entries.get(f"{kind}.{parameter}")
            if other and (other[1] != before[1] or not DTYPES.get(other[0], DTYPES["U8"]).is_float):
                raise Cannot(f"{name}: {kind}.{parameter} does not fit before.{parameter}")
