"""What the official configuration implies: the reference implementation's model on the meta device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.building.quantities import ATTRIBUTES, CHILDREN
from checks.loading.expected import Release, read_release
from checks.references.checkpoints.folder import Checkpoint
from checks.references.meta_model import MetaModel, build_on_meta
from checks.references.names import load_names
from checks.references.packs import load_pack

REFERENCE_PACK = "transformers"
"""The built-in pack whose name map is that of the reference implementation."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ReferenceModule:
    """A module of the reference: its class, whether it is a linear layer, the table's values in it."""

    kind: str
    linear: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """The model that the configuration implies.

    ``tensors``: shapes of parameters and persistent buffers, under the reference's names. ``head``: the
    module that gives the logits. ``why_not``: why there is no reference; everything else is empty then.
    """

    tensors: Mapping[str, Shape] = field(default_factory=dict, repr=False)
    modules: Mapping[str, ReferenceModule] = field(default_factory=dict, repr=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    head: str = ""
    version: str = ""
    why_not: str = ""


def reference_of(checkpoint: Checkpoint, dtype: str) -> Reference:
    """Build the release's model on the meta device and describe it."""
    built = build_on_meta(checkpoint.path, checkpoint.json("config.json") or {}, dtype)
    if built.model is None:
        return Reference(why_not=built.why_not)
    return _described(built)


def _described(built: MetaModel) -> Reference:
    import torch
    import transformers

    model = built.model.train()  # as a training step has it
    tensors = {name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)}
    volatile = {name for name, _ in model.named_non_persistent_buffers()}
    buffers = model.named_buffers(remove_duplicate=False)
    tensors |= {name: tuple(value.shape) for name, value in buffers if name not in volatile}
    named = dict(model.named_modules())
    head = model.get_output_embeddings()
    return Reference(
        tensors=tensors,
        modules={
            name: ReferenceModule(type(part).__name__, isinstance(part, torch.nn.Linear), _values(part))
            for name, part in named.items()
        },
        config=built.config.to_dict(),
        head=next((name for name, part in named.items() if part is head), ""),
        version=transformers.__version__,
    )


def _values(module: Any) -> dict[str, Any]:
    own = {name: value for name, value in vars(module).items() if name in ATTRIBUTES and _is_plain(value)}
    parts = {name: part for name, part in module.named_children() if name in CHILDREN}
    return own | {name: type(part).__name__ for name, part in parts.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    return value is None or isinstance(value, bool | int | float | str)


def implied(reference: Reference, checkpoint: Checkpoint, theirs: Release) -> dict[str, Shape]:
    """Shapes of the parameters and persistent buffers that the job's model has to have, under its names.

    The reference's own, where the framework's map makes a tensor as the reference does. What it makes in
    another way (each expert apart, gate and up in one) follows from the release's tensors that the
    reference's are made of, arranged by the map. Raises `Inconclusive` where the release cannot be arranged.
    """
    names = load_names(load_pack(REFERENCE_PACK))
    ours = read_release(checkpoint, names, reference.version, None, {}).expected
    found: dict[str, Shape] = {}
    elsewhere: set[str] = set()
    for name, shape in reference.tensors.items():
        mine, other = ours.get(name), theirs.expected.get(name)
        if mine is None or (other is not None and other.made == mine.made):
            found[name] = shape
        else:
            elsewhere.update(mine.made.tensors)
    for name, entry in theirs.expected.items():
        if name not in found and elsewhere.issuperset(entry.made.tensors):
            found[name] = entry.shape
    return found
