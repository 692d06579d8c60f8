"""Lets the recorder fill the memory that from_pretrained has to overwrite.

Two places hold such memory: a model that was built with memory, before the loader first touches it, and
parameters that the loader makes itself because it found no value for them. Newer versions build on the meta
device: there a loaded value is the parameter, and only the second place is left.
"""

import contextlib
import functools
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

LOADER = "_load_pretrained_model"
MATERIALISED = ("_move_missing_keys_from_meta_to_device", "_move_missing_keys_from_meta_to_cpu")


@contextlib.contextmanager
def filled(recorder: object) -> "Iterator[None]":
    """While this holds, each model that is loaded is filled first."""
    originals = {name: PreTrainedModel.__dict__[name] for name in (LOADER, *MATERIALISED) if known(name)}
    setattr(PreTrainedModel, LOADER, filled_before(originals[LOADER], recorder))
    for name in MATERIALISED:
        if name in originals:
            setattr(PreTrainedModel, name, filled_after(originals[name], recorder))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(PreTrainedModel, name, original)


def known(name: str) -> bool:
    """Whether this version's loader has that step."""
    return name in PreTrainedModel.__dict__


def filled_before(loader: object, recorder: object) -> object:
    """The loader, which first lets the recorder fill what the model already holds memory for."""
    original = loader.__func__

    @functools.wraps(original)
    def load_filled(*arguments: object, **named: object) -> object:
        model = next(one for one in arguments if isinstance(one, torch.nn.Module))
        recorder.fill(state(model, set(model.state_dict())), "before-load")
        return original(*arguments, **named)

    return type(loader)(load_filled)  # a class method in some versions, a static one in others


def filled_after(step: object, recorder: object) -> object:
    """The step that gives missing parameters memory; the recorder then fills it."""

    @functools.wraps(step)
    def materialise_filled(
        self: torch.nn.Module, missing: object, *arguments: object, **named: object
    ) -> object:
        result = step(self, missing, *arguments, **named)
        recorder.fill(state(self, set(missing)), "materialised")
        return result

    return materialise_filled


def state(model: torch.nn.Module, names: "set[str]") -> "list[tuple[str, torch.Tensor]]":
    """Parameters and persistent buffers of those names, where they hold memory."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    return [(name, tensors[name]) for name in sorted(names) if name in tensors and not tensors[name].is_meta]
