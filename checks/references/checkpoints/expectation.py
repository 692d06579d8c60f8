"""What an export has to hold: for each tensor its name, dtype, shape and the numbers it is held against."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from checks.errors import NotEvaluated
from checks.references.checkpoints.folder import Checkpoint
from checks.references.checkpoints.formats import FORMATS, TORCH_NAMES
from checks.references.checkpoints.layouts import BlockFp8, Group, Plain, Rounded, Transposed, Values, groups
from checks.references.checkpoints.merging import Adapter, MergeBound, Merged, Update
from checks.references.checkpoints.tensors import Tensor

HEADS = ("lm_head.weight", "head.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed.weight", "word_embeddings.weight")


class Declared(Protocol):
    """An export format that a framework documents (`checks.references.packs.DeclaredExport`)."""

    @property
    def release_format(self) -> str: ...  # noqa: D102 - the pack's schema says it
    @property
    def exported_as(self) -> str: ...  # noqa: D102
    @property
    def names(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def transposed(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def citation(self) -> object: ...  # noqa: D102


@dataclass(frozen=True)
class Wanted:
    """One tensor of the export as it has to be.

    ``raw`` is compared bit for bit where it is set; else ``values`` number for number, within ``allowed``
    where a merge may round. ``exact`` is a second way to round, also right. ``unmerged`` is the base of a
    merge. ``group`` is set for tensors that are a low-precision tensor together, ``no_reference`` says why
    the values cannot be judged.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Values
    raw: Tensor | None = None
    exact: Values | None = None
    allowed: Values | None = None
    unmerged: Values | None = None
    update: Update | None = None
    group: Group | None = None
    no_reference: str = ""

    @property
    def can_round(self) -> bool:
        """Whether numbers can be rounded to the tensor's dtype."""
        return FORMATS[self.dtype].is_float and FORMATS[self.dtype].bits >= 16

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor on disk."""
        size = 1
        for length in self.shape:
            size *= length
        return size * FORMATS[self.dtype].bits // 8


@dataclass(frozen=True)
class Expectation:
    """Everything an export has to hold, and how it came to differ from the release's own bytes.

    ``whole`` is false for the few tensors that faults are injected into.
    """

    wanted: dict[str, Wanted]
    notes: tuple[str, ...] = ()
    quantization_dropped: bool = False
    untied_by_adapter: bool = False
    idle: tuple[str, ...] = field(default=())
    whole: bool = True


def expectation(
    original: Checkpoint, declared: tuple[Declared, ...], adapter: Adapter | None, trained: Checkpoint | None
) -> Expectation:
    """Build it. Raises `Unreadable` (scales that do not fit), `NotEvaluated` (an adapter we cannot place)."""
    found = groups(original.tensors, original.json("config.json") or {})
    formats = {entry.release_format: entry for entry in declared}
    wanted = {entry.name: entry for entry in _as_released(original, found, formats)}
    kinds = {group.kind for group in found.values()}
    used = sorted(kinds & set(formats))
    notes = tuple(
        f"the framework documents that it exports {kind} as {formats[kind].exported_as}:"
        f" {formats[kind].citation}"
        for kind in used
    )
    result = Expectation(wanted, notes, quantization_dropped=bool(used) and kinds <= set(formats))
    if adapter is not None:
        result = _adapted(result, adapter, original)
    if trained is not None:
        result = replace(
            result, wanted={name: _trained(entry, trained) for name, entry in result.wanted.items()}
        )
    return result


def _as_released(
    original: Checkpoint, found: Mapping[str, Group], formats: Mapping[str, Declared]
) -> Iterator[Wanted]:
    scales = {group.scale: group for group in found.values()}
    for name, tensor in original.tensors.items():
        group = found.get(name) or scales.get(name)
        if group is not None and group.kind in formats:
            if name == group.main:
                yield _as_declared(group, formats[group.kind])
        else:
            yield Wanted(name, tensor.dtype, tensor.shape, Plain(tensor), raw=tensor, group=group)


def _as_declared(group: Group, declared: Declared) -> Wanted:
    name = group.main
    for suffix, exported in declared.names.items():
        if name == suffix or name.endswith(f".{suffix}"):
            name = name[: len(name) - len(suffix)] + exported
            break
    dtype = TORCH_NAMES[declared.exported_as]
    values, exact = group.values, group.exact
    if any(name == suffix or name.endswith(f".{suffix}") for suffix in declared.transposed):
        values, exact = Transposed(values), Transposed(exact)
    fmt = FORMATS[dtype]
    second = Rounded(exact, fmt) if isinstance(group.values, BlockFp8) else None
    return Wanted(name, dtype, values.shape, Rounded(values, fmt), exact=second)


def _adapted(result: Expectation, adapter: Adapter, original: Checkpoint) -> Expectation:
    wanted = dict(result.wanted)
    head, embedding = head_name(original), embedding_name(original)
    untied = False
    touched = {f"{module}.weight" for module in adapter.updates} | set(adapter.replaced)
    tied = embedding is not None and not any(name in wanted for name in HEADS)
    if tied and embedding is not None and touched & {embedding, head}:
        wanted[head] = replace(wanted[embedding], name=head)
        untied = True
    for name, tensor in adapter.replaced.items():
        entry = _adapted_entry(wanted, name, tensor.shape)
        same = tensor.dtype == entry.dtype
        values: Values = Plain(tensor) if same else Rounded(Plain(tensor), FORMATS[entry.dtype])
        wanted[name] = replace(entry, values=values, raw=tensor if same else None, unmerged=entry.values)
    for module, update in adapter.updates.items():
        name = f"{module}.weight"
        entry = _adapted_entry(wanted, name, update.shape)
        merged = Merged(entry.values, update)
        bound = MergeBound(merged, FORMATS[entry.dtype])
        wanted[name] = replace(
            entry, values=merged, raw=None, exact=None, allowed=bound, unmerged=entry.values, update=update
        )
    idle = tuple(module for module, update in adapter.updates.items() if update.is_zero)
    return replace(result, wanted=wanted, untied_by_adapter=untied, idle=idle)


def _adapted_entry(wanted: Mapping[str, Wanted], name: str, shape: tuple[int, ...]) -> Wanted:
    entry = wanted.get(name)
    if entry is None:
        raise NotEvaluated(
            f"the adapter changes {name[:200]}, which the release does not name so",
            "compare with --trained, the checkpoint the merge should equal",
        )
    if entry.shape != shape or not entry.can_round:
        raise NotEvaluated(
            f"the adapter's change of {name[:200]} is {list(shape)},"
            f" the tensor is {entry.dtype} {list(entry.shape)}"
        )
    return entry


def _trained(entry: Wanted, trained: Checkpoint) -> Wanted:
    tensor = trained.tensors.get(entry.name)
    reason = ""
    if tensor is None:
        reason = "the checkpoint that training ended with does not hold it"
    elif tensor.shape != entry.shape:
        reason = f"the checkpoint that training ended with has it as {list(tensor.shape)}"
    elif tensor.dtype != entry.dtype and not (tensor.format.is_float and entry.can_round):
        reason = f"the checkpoint that training ended with has it as {tensor.dtype}"
    if reason or tensor is None:
        return replace(entry, no_reference=reason)
    if tensor.dtype == entry.dtype:
        return replace(entry, values=Plain(tensor), raw=tensor, exact=None, allowed=None, group=None)
    values = Rounded(Plain(tensor), FORMATS[entry.dtype])
    return replace(entry, values=values, raw=None, exact=None, allowed=None, group=None)


def embedding_name(checkpoint: Checkpoint) -> str | None:
    """The raw name of the token embedding, None where no tensor is called so."""
    return next((name for name in checkpoint.tensors if _ends(name, EMBEDDINGS)), None)


def head_name(checkpoint: Checkpoint) -> str:
    """The raw name of the output head; ``lm_head.weight`` where the release ties it away."""
    return next((name for name in checkpoint.tensors if name in HEADS), HEADS[0])


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether a configuration says that the output head is the embedding."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, Mapping) else None
    return config.get("tie_word_embeddings", inner) is True


def _ends(name: str, suffixes: tuple[str, ...]) -> bool:
    return any(name == suffix or name.endswith(f".{suffix}") for suffix in suffixes)
