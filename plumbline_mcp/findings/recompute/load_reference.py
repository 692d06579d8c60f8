"""What every parameter has to hold after a load: the release's tensors, arranged, decoded and cast once."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import DTYPES, TORCH, Floats
from plumbline_mcp.findings.recompute.model_record import Entry
from plumbline_mcp.findings.recompute.names_map import Made, NamesMap
from plumbline_mcp.findings.recompute.reading import Cannot
from plumbline_mcp.findings.recompute.release import Weights, is_wide, stated_dtype

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "head.weight")
_LOSSLESS = {
    "BF16": ("F32", "F64"),
    "F16": ("F32", "F64"),
    "F32": ("F64",),
    "F8_E4M3": ("BF16", "F16", "F32", "F64"),
}
"""Casts that change no value."""


@dataclass(frozen=True)
class Wanted:
    """One parameter: ``readings`` give its values (a second one where another rounding is right too).

    ``raw``: the release's tensor where it is that tensor and nothing else; ``dtypes`` those that may be met.
    """

    name: str
    made: Made
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    raw: str | None
    readings: tuple[Callable[[], Floats], ...] = field(repr=False)


@dataclass(frozen=True)
class Reference:
    """Every parameter by name; ``unbuilt`` those of multi-token prediction; ``tied`` (embedding, head)."""

    weights: Weights
    wanted: dict[str, Wanted] = field(repr=False)
    unbuilt: frozenset[str]
    tied: tuple[str, str] | None
    apart: tuple[str, str] | None
    covers: bool


def reference_of(weights: Weights, names: NamesMap, setting: Any, held: dict[str, list[Entry]]) -> Reference:
    """Work out every parameter. Raises `Cannot`."""
    named = recipe_dtype(setting, held, weights.config)
    stated = named or stated_dtype(weights.config)
    kept = {
        name
        for code, about in weights.coded.items()
        if all(n in held and held[n][0].dtype == weights.dtype(n) for n in (code, about.scale))
        for name in (code, about.scale)
    }
    coded = {name for name in weights.coded if name not in kept}
    apart = kept | {weights.coded[name].scale for name in coded}
    made = names.made([name for name in weights.files if name not in apart])
    made |= {name: Made(name, ((name,),)) for name in kept}
    wanted = {name: _wanted(weights, names, one, coded, named, stated) for name, one in made.items()}
    pair = _pair(weights, made)
    tie = _ties(weights)
    unbuilt = frozenset(name for name in wanted if _is_extra(name, weights.config))
    if pair and tie:
        embedding, head = pair
        if head in wanted and _raw_differs(weights, wanted[embedding], wanted[head]):
            return Reference(weights, wanted, unbuilt, None, None, names.covers)
        first = wanted[embedding]
        wanted[head] = Wanted(head, first.made, first.shape, first.dtypes, first.raw, first.readings)
    return Reference(
        weights, wanted, unbuilt, pair if tie else None, pair if tie is False else None, names.covers
    )


def recipe_dtype(setting: Any, held: dict[str, list[Entry]], config: dict[str, Any]) -> str | None:
    """The dtype that the recipe names. ``default``: what most tensors are, float32 or the release's own."""
    if isinstance(setting, str) and setting in TORCH and is_wide(TORCH[setting]):
        return setting
    counts = Counter(str(entries[0].line.get("dtype")) for entries in held.values() if entries[0].loadable)
    most = next((name for name, _ in counts.most_common() if is_wide(TORCH.get(name, ""))), "")
    return most if setting == "default" and most in ("float32", stated_dtype(config)) else None


def _wanted(
    weights: Weights, names: NamesMap, made: Made, coded: set[str], named: str | None, stated: str | None
) -> Wanted:
    single = made.tensors[0] if not made.steps and len(made.tensors) == 1 else None
    raw = single if single is not None and single not in coded else None

    def reading(one_rounding: bool) -> Callable[[], Floats]:
        def read(name: str) -> Floats:
            return weights.numbers(name, single=one_rounding) if name in coded else weights.plain(name)

        return lambda: made.build(read, weights.config)

    rounds = any(name in coded and weights.coded[name].kind == "fp8" for name in made.tensors)
    readings = (reading(True), reading(False)) if rounds else (reading(False),)
    shape = weights.shape(raw) if raw is not None else _shape(weights, made, coded)
    dtypes = _dtypes(weights, names, made, raw, coded, named, stated)
    return Wanted(made.name, made, shape, dtypes, raw, readings)


def _shape(weights: Weights, made: Made, coded: set[str]) -> tuple[int, ...]:
    """The shape that the arranged tensors have, from stand-ins of one byte an element."""

    def blank(name: str) -> Floats:
        shape = weights.decoded_shape(name) if name in coded else weights.shape(name)
        return np.zeros(shape, np.bool_)

    return made.build(blank, weights.config).shape


def _dtypes(
    weights: Weights, names: NamesMap, made: Made, raw: str | None, coded: set[str],
    named: str | None, stated: str | None,
) -> tuple[str, ...]:  # fmt: skip
    """The recipe's dtype; the release's own where the recipe names none; float32 where that is documented."""
    if raw is not None and not is_wide(weights.dtype(raw)):
        return (weights.dtype(raw),)
    own = {weights.dtype(name) for name in made.tensors if name not in coded}
    if stated is None:
        return tuple(own) if len(own) == 1 else ("F32",)
    first = TORCH[stated]
    wider = names.kept_wider(made.name, stated)
    keeps = all(dtype == first or first in _LOSSLESS.get(dtype, ()) for dtype in own)
    found = ((first,) if keeps or not wider else ()) + (("F32",) if wider else ())
    return found + (tuple(own) if named is None and len(own) == 1 else ())


def _pair(weights: Weights, made: dict[str, Made]) -> tuple[str, str] | None:
    """The parameters that are the token embedding and the output head."""
    embedding = next(
        (n for n in weights.files if any(n == e or n.endswith(f".{e}") for e in EMBEDDINGS)), None
    )
    head = next((name for name in weights.files if name in HEADS), HEADS[0])
    whole = {one.tensors[0]: name for name, one in made.items() if len(one.tensors) == 1 and one.parts == 1}
    if embedding is None or embedding not in whole:
        return None
    return whole[embedding], whole.get(head, head)


def _ties(weights: Weights) -> bool | None:
    inner = weights.config.get("text_config")
    below = inner.get("tie_word_embeddings") if isinstance(inner, dict) else None
    said = weights.config.get("tie_word_embeddings", below)
    if isinstance(said, bool):
        return said
    return None if any(name in HEADS for name in weights.files) else True


def _raw_differs(weights: Weights, one: Wanted, other: Wanted) -> bool:
    if one.raw is None or other.raw is None:
        return True
    return weights.dtype(one.raw) != weights.dtype(other.raw) or weights.raw(one.raw) != weights.raw(
        other.raw
    )


def _is_extra(name: str, config: dict[str, Any]) -> bool:
    """Whether a tensor is of multi-token prediction: a module ``mtp``, or layers past the last one."""
    inner = config.get("text_config")
    place = inner if isinstance(inner, dict) and "num_hidden_layers" in inner else config
    layers, more = place.get("num_hidden_layers"), place.get("num_nextn_predict_layers")
    found = re.search(r"(?:^|\.)layers\.(\d{1,6})\.", name)
    beyond = found and type(layers) is int and type(more) is int and layers <= int(found[1]) < layers + more
    return bool(re.search(r"(^|\.)mtp\.", name)) or bool(beyond)


def can_be(weights: Weights, wanted: Wanted, dtype: str) -> bool:
    """Whether the values can be written in a dtype."""
    if wanted.raw is not None and dtype == weights.dtype(wanted.raw):
        return True
    numbers = wanted.raw is None or DTYPES.get(weights.dtype(wanted.raw), DTYPES["U8"]).is_float
    return is_wide(dtype) and numbers


def require_readable(weights: Weights) -> None:
    """A release whose tensors have decoders. Raises `Cannot`."""
    odd = next((name for name in weights.files if weights.dtype(name) not in DTYPES), None)
    if odd is not None:
        raise Cannot(f"{odd[:200]} of the release is {weights.dtype(odd)}, which has no decoder here")
