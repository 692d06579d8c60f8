"""What every parameter has to hold after the load: the release's tensors arranged and cast once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checks.errors import Inconclusive
from checks.loading.arrangements import Cut, Interleaved, Joined, Stacked, Unfit
from checks.references.checkpoints.expectation import EMBEDDINGS, HEADS
from checks.references.checkpoints.folder import Checkpoint
from checks.references.checkpoints.formats import FORMATS, TORCH_NAMES, Codes, encoded
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.layouts import BlockFp8, Group, Plain, Transposed, Values, grid, groups
from checks.references.checkpoints.tensors import Tensor
from checks.references.names import Kept, Made, NamesFile, Operation, arrange, compiled, kept_in

_EXACT = {
    "BF16": ("F32", "F64"),
    "F16": ("F32", "F64"),
    "F32": ("F64",),
    "F8_E4M3": ("BF16", "F16", "F32", "F64"),
}
"""Casts that lose nothing."""


@dataclass(frozen=True)
class Expected:
    """One parameter or persistent buffer as it has to be.

    ``raw`` is the release's tensor where the parameter is that tensor, renamed or not; ``exact`` a second way
    to round, also right (products of block FP8 in float64). ``dtypes`` may be met, the first one is wanted.
    ``kept`` cites what lets it be wider than the recipe.
    """

    name: str
    values: Values = field(repr=False)
    dtypes: tuple[str, ...]
    made: Made
    raw: Tensor | None = field(default=None, repr=False)
    exact: Values | None = field(default=None, repr=False)
    kept: Kept | None = None
    low_precision: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole parameter's shape."""
        return self.values.shape

    @property
    def size(self) -> int:
        """Elements of the whole parameter."""
        rows, columns = grid(self.shape)
        return rows * columns

    def can_be(self, dtype: str) -> bool:
        """Whether the values can be written in a dtype: the release's own, or a float of 16 bits up."""
        if self.raw is not None and dtype == self.raw.dtype:
            return True
        fmt = FORMATS.get(dtype)
        is_number = self.raw is None or self.raw.format.is_float
        return fmt is not None and fmt.is_float and fmt.bits >= 16 and is_number

    def codes(self, dtype: str, first: int, last: int, values: Values | None = None) -> Codes:
        """Rows of the grid as codes of ``dtype``, [last - first, columns]; of other ``values`` if given."""
        columns = grid(self.shape)[1]
        if values is None and self.raw is not None and dtype == self.raw.dtype:
            return self.raw.codes(first * columns, last * columns).reshape(last - first, columns)
        rows = (values or self.values).rows(first, last)
        return np.frombuffer(encoded(rows, FORMATS[dtype]), FORMATS[dtype].code).reshape(last - first, -1)


@dataclass(frozen=True)
class Release:
    """What the release says that a model has to hold.

    ``expected`` by parameter name; ``unbuilt`` the release's tensors of multi-token prediction by their
    parameter's name; ``tied`` (embedding, head) where the configuration ties them, ``tied_by`` says where it
    does; ``apart`` the same pair where it says that they are two.
    """

    checkpoint: Checkpoint
    expected: dict[str, Expected] = field(repr=False)
    unbuilt: dict[str, str] = field(default_factory=dict, repr=False)
    tied: tuple[str, str] | None = None
    apart: tuple[str, str] | None = None
    dtype: str = ""
    notes: tuple[str, ...] = ()


def read_release(
    checkpoint: Checkpoint, names: NamesFile, version: str, recipe: str | None, recorded: Mapping[str, str]
) -> Release:
    """Work out every parameter. Raises `Inconclusive` where the release cannot be decoded or arranged.

    ``recipe``: the recipe's dtype as torch names it, None for the release's own; ``recorded``: name to dtype
    (safetensors' name) of what the model holds, which says whether low-precision tensors stay encoded.
    """
    config = checkpoint.json("config.json") or {}
    model_type = str(config.get("model_type", ""))[:80]
    try:
        found = groups(checkpoint.tensors, config)
    except Unreadable as error:
        raise Inconclusive(f"the release cannot be decoded: {error}") from error
    encoded_names = _stay_encoded(found, checkpoint, recorded)
    found = {name: group for name, group in found.items() if name not in encoded_names}
    apart = encoded_names | {group.scale for group in found.values()}
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in apart}
    stated = recipe or stated_dtype(config)
    kept = kept_in(names, model_type, version, stated or "")
    makers = _Makers(checkpoint.tensors, found, config, recipe, stated, tuple(kept))
    made = arrange(names, tensors, model_type, version)
    made |= {name: Made(name, ((name,),)) for name in encoded_names}
    expected = {name: makers.expected(entry) for name, entry in made.items()}
    unbuilt = _unbuilt(expected, config)
    pair = _pair(checkpoint, names, model_type, version)
    tied = _is_tied(config, checkpoint)
    release = Release(checkpoint, expected, unbuilt, dtype=stated or "")
    return _with_ties(release, pair, tied) if pair else release


@dataclass(frozen=True)
class _Makers:
    tensors: Mapping[str, Tensor]
    groups: Mapping[str, Group]
    config: Mapping[str, Any]
    recipe: str | None
    stated: str | None
    kept: tuple[Kept, ...]

    def expected(self, made: Made) -> Expected:
        single = made.tensors[0] if not made.operations and len(made.tensors) == 1 else None
        raw = self.tensors[single] if single is not None and single not in self.groups else None
        try:
            values = self._arranged(made, exact=False)
        except Unfit as error:
            raise Inconclusive(
                f"{made.name[:200]} cannot be made as the name map says: {error}",
                "name the release that was loaded, or mend the pack's names.toml",
            ) from error
        encoded_sources = [name for name in made.tensors if name in self.groups]
        rounds = any(isinstance(self.groups[name].values, BlockFp8) for name in encoded_sources)
        exact = self._arranged(made, exact=True) if rounds else None
        kept = next((entry for entry in self.kept if _matches(entry, made.name)), None)
        dtypes = self._dtypes(made, raw, kept)
        return Expected(made.name, values, dtypes, made, raw, exact, kept, bool(encoded_sources))

    def _arranged(self, made: Made, *, exact: bool) -> Values:
        parts = [tuple(self._values(name, exact=exact) for name in names) for names in made.sources]
        values: tuple[Values, ...] = tuple(part[0] for part in parts)
        operations = made.operations
        if operations and operations[0].over:
            first, operations = operations[0], operations[1:]
            values = tuple(Stacked(p) if first.op == "stack" else Joined(p, first.axis) for p in parts)
        for operation in operations:
            values = _applied(operation, values, made, self.config)
        return values[0]

    def _values(self, name: str, *, exact: bool) -> Values:
        group = self.groups.get(name)
        if group is None:
            return Plain(self.tensors[name])
        return group.exact if exact else group.values

    def _dtypes(self, made: Made, raw: Tensor | None, kept: Kept | None) -> tuple[str, ...]:
        """The dtypes that may be met: the recipe's, the release's own where it names none, a kept one.

        A parameter that is kept wider may also be as the recipe says where the recipe's dtype holds every
        value of the release: then nothing was lost.
        """
        if raw is not None and not (raw.format.is_float and raw.format.bits >= 16):
            return (raw.dtype,)
        own = {self.tensors[name].dtype for name in made.tensors if name not in self.groups}
        if self.stated is None:
            return tuple(sorted(own)) if len(own) == 1 else ("F32",)
        wanted = TORCH_NAMES[self.stated]
        lossless = all(dtype == wanted or wanted in _EXACT.get(dtype, ()) for dtype in own)
        dtypes: tuple[str, ...] = (wanted,) if kept is None or lossless else ()
        dtypes += (TORCH_NAMES[kept.dtype],) if kept is not None else ()
        if self.recipe is None and len(own) == 1:
            dtypes += tuple(own)
        return tuple(dict.fromkeys(dtypes))


def _applied(
    operation: Operation, values: tuple[Values, ...], made: Made, config: Mapping[str, Any]
) -> tuple[Values, ...]:
    match operation.op:
        case "concat":
            return (Joined(values, operation.axis),)
        case "interleave":
            return (Interleaved(values, operation.axis),)
        case "transpose":
            if any(len(each.shape) < 2 for each in values):
                raise Unfit("a transpose needs two axes")
            return tuple(Transposed(each) for each in values)
        case "split":
            return (_split(operation, values[0], made, config),)
    return values


def _split(operation: Operation, values: Values, made: Made, config: Mapping[str, Any]) -> Values:
    length = values.shape[operation.axis] if operation.axis < len(values.shape) else 0
    if operation.sizes:
        sizes = [_size(factors, config) for factors in operation.sizes]
    else:
        sizes = [length // made.parts] * made.parts
    if sum(sizes) != length:
        raise Unfit(f"{length} indices along axis {operation.axis} are not the sum of {sizes}")
    start = sum(sizes[: made.part])
    return Cut(values, operation.axis, start, start + sizes[made.part])


def _size(factors: tuple[str | int, ...], config: Mapping[str, Any]) -> int:
    size = 1
    for factor in factors:
        value = config.get(factor) if isinstance(factor, str) else factor
        if type(value) is not int or value < 1:
            raise Unfit(f"the configuration's {factor} is {str(value)[:40]!r}, no length")
        size *= value
    return size


def _matches(kept: Kept, name: str) -> bool:
    return any(compiled(pattern).fullmatch(name) for pattern in kept.parameters)


def _stay_encoded(
    found: Mapping[str, Group], checkpoint: Checkpoint, recorded: Mapping[str, str]
) -> set[str]:
    """Codes and scales that the model holds themselves, under the release's names and in its dtypes."""
    pairs = ((group.main, group.scale) for group in found.values())
    held = (
        pair for pair in pairs if all(recorded.get(name) == checkpoint.tensors[name].dtype for name in pair)
    )
    return {name for pair in held for name in pair}


def stated_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype that a configuration states, None where it states none that is known."""
    for place in (config, config.get("text_config")):
        if isinstance(place, Mapping):
            value = place.get("dtype", place.get("torch_dtype"))
            if isinstance(value, str) and value.removeprefix("torch.") in TORCH_NAMES:
                return value.removeprefix("torch.")
    return None


def _unbuilt(expected: Mapping[str, Expected], config: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of multi-token prediction, with why: layers past the last one, modules called ``mtp``.

    The release itself says that there are such: ``num_nextn_predict_layers`` layers (DeepSeek-V3, GLM) are
    numbered from ``num_hidden_layers`` on; other releases name the module (Qwen3-Next, DeepSeek-V4).
    """
    text = config.get("text_config")
    place = text if isinstance(text, Mapping) and "num_hidden_layers" in text else config
    layers, extra = place.get("num_hidden_layers"), place.get("num_nextn_predict_layers")
    found = {}
    for name in expected:
        if re.search(r"(^|\.)mtp\.", name):
            found[name] = "a module called mtp"
        match = re.search(r"(?:^|\.)layers\.(\d{1,6})\.", name)
        if match and type(layers) is int and type(extra) is int and layers <= int(match[1]) < layers + extra:
            found[name] = f"num_nextn_predict_layers {extra} past num_hidden_layers {layers}"
    return found


def _pair(checkpoint: Checkpoint, names: NamesFile, model_type: str, version: str) -> tuple[str, str] | None:
    """The parameters that are the token embedding and the output head, None where a name is unknown."""
    embedding = next((name for name in checkpoint.tensors if _ends(name, EMBEDDINGS)), None)
    if embedding is None:
        return None
    head = next((name for name in checkpoint.tensors if name in HEADS), HEADS[0])
    try:
        made = arrange(names, {embedding: None, head: None}, model_type, version)
    except Inconclusive:  # one of the two is made with other tensors
        return None
    whole = {entry.tensors: entry.name for entry in made.values() if entry.parts == 1}
    one, other = whole.get((embedding,)), whole.get((head,))
    return (one, other) if one is not None and other is not None else None


def _ends(name: str, suffixes: tuple[str, ...]) -> bool:
    return any(name == suffix or name.endswith(f".{suffix}") for suffix in suffixes)


def _is_tied(config: Mapping[str, Any], checkpoint: Checkpoint) -> bool | None:
    """As the configuration states; else tied where the release has no head, and None where it has one."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, Mapping) else None
    stated = config.get("tie_word_embeddings", inner)
    if isinstance(stated, bool):
        return stated
    return None if any(name in HEADS for name in checkpoint.tensors) else True


def _with_ties(release: Release, pair: tuple[str, str], tied: bool | None) -> Release:
    embedding, head = pair
    expected, notes = dict(release.expected), list(release.notes)
    if tied and head in expected:
        one, other = expected[embedding].raw, expected[head].raw
        if one is None or other is None or one.digest() != other.digest():
            notes.append(f"the configuration ties {head}, and the release holds it apart with other values")
            return Release(
                release.checkpoint, expected, release.unbuilt, None, None, release.dtype, tuple(notes)
            )
    if tied:
        entry = expected[embedding]
        expected[head] = Expected(
            head, entry.values, entry.dtypes, entry.made, entry.raw, entry.exact, entry.kept
        )
    return Release(
        release.checkpoint,
        expected,
        release.unbuilt,
        pair if tied else None,
        pair if tied is False else None,
        release.dtype,
        tuple(notes),
    )
