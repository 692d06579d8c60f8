"""Buffers that a model computes instead of loading (rotary frequencies), as the reference makes them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.records.model_records import Recorded
from checks.references.checkpoints.formats import FORMATS, Floats, decode
from checks.references.meta_model import build_on_meta
from checks.rules import BUFFER_ULPS

if TYPE_CHECKING:
    from checks.loading.case import LoadCase

Buffer = tuple[str, Floats]
"""The dtype as safetensors names it, and the values."""


def is_computed(entry: Recorded) -> bool:
    """Whether a model computes the tensor: a buffer that is not saved."""
    return entry.line.kind == "buffer" and not entry.line.persistent


def reference_buffers(case: "LoadCase") -> tuple[Mapping[str, Buffer], str]:
    """Values of computed buffers by name, and why there are none where there are none.

    The reference builds the model on the meta device, so this costs no memory, and initialises the modules
    that own such buffers. What its initialisation leaves out is unknown, not zero.
    """
    config = case.release.checkpoint.json("config.json") or {}
    names = {name for name, held in case.holders(case.moment).items() if is_computed(held[0])}
    if not names:
        return {}, ""
    built = build_on_meta(case.release.checkpoint.path, config, case.release.dtype)
    if built.model is None:
        return {}, built.why_not
    try:
        return _computed(built.model, names), ""
    except Exception as error:  # noqa: BLE001 - whatever stops the reference from initialising is the reason
        return {}, f"the reference cannot initialise it: {type(error).__name__}: {str(error)[:200]}"


def _computed(model: Any, names: set[str]) -> dict[str, Buffer]:
    computed = dict(model.named_non_persistent_buffers())
    buffers: dict[str, Buffer] = {}
    for prefix, module in model.named_modules():
        own = {key: f"{prefix}.{key}" if prefix else key for key, _ in module.named_buffers(recurse=False)}
        wanted = {key: full for key, full in own.items() if full in names and full in computed}
        if wanted:
            buffers |= _initialised(model, module, wanted)
    return buffers


def _initialised(model: Any, module: Any, wanted: Mapping[str, str]) -> dict[str, Buffer]:
    import torch

    for key, buffer in list(module.named_buffers(recurse=False)):
        fill = float("nan") if buffer.is_floating_point() else 0
        setattr(module, key, torch.full(tuple(buffer.shape), fill, dtype=buffer.dtype, device="cpu"))
    with torch.no_grad():
        model._init_weights(module)  # noqa: SLF001 - the only initialisation of one module; the version is pinned
    found = {}
    for key, full in wanted.items():
        value = getattr(module, key)
        if value.is_floating_point() and bool(torch.isfinite(value).all()):
            dtype = next((name for name, torch_type in _TYPES if str(value.dtype) == torch_type), "")
            found[full] = (dtype, value.double().numpy())
    return found


_TYPES = (
    ("F32", "torch.float32"),
    ("F64", "torch.float64"),
    ("BF16", "torch.bfloat16"),
    ("F16", "torch.float16"),
)


def unlike_reference(reference: Buffer, entry: Recorded) -> str:
    """How a recorded buffer differs from the reference's, empty where it does not. Rule: `BUFFER_ULPS`."""
    dtype, wanted = reference
    if entry.dtype != dtype:
        return f"it is {entry.dtype}, the reference computes and keeps it in {dtype}"
    if entry.line.shape != wanted.shape:
        return f"it is {list(entry.line.shape)}, the reference makes it {list(wanted.shape)}"
    found, flat = _found(entry), wanted.ravel()
    if found is None:
        return ""
    if entry.values is None and entry.line.sample is not None:
        flat = flat[:: entry.line.sample.stride]
    if found.shape != flat.shape:
        return f"{found.size} of its values are recorded, not {flat.size}"
    ulps = BUFFER_ULPS if FORMATS[dtype].bits >= 32 else 1  # what was computed in float32 and rounded
    allowed = ulps * 2 * FORMATS[dtype].roundoff * np.abs(flat)
    wrong = ~(np.abs(found - flat) <= allowed)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    count = f"{int(wrong.sum())} of {flat.size} values differ from the reference's"
    return f"{count}, the first at {at}: {found[at]:.6g}, not {flat[at]:.6g}"


def _found(entry: Recorded) -> Floats | None:
    if entry.values is not None:
        return decode(entry.values.codes(), FORMATS[entry.dtype]).ravel().astype(np.float64)
    if entry.line.sample is not None:
        return np.array([np.nan if v is None else v for v in entry.line.sample.values], np.float64)
    return None
