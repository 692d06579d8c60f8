"""Names of parameters as the model itself gives them, without what wrappers put before and between."""

import gc
from typing import NamedTuple

import torch

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""torch.compile, FSDP 1 and checkpoint wrappers."""


def plain_name(name: str) -> str:
    """A parameter's name without the wrappers' parts."""
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name


def unwrapped(module: "torch.nn.Module") -> "torch.nn.Module":
    """The module inside DistributedDataParallel, FSDP 1, DataParallel and torch.compile."""
    while True:
        kind = type(module).__name__
        inner = None
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
            inner = getattr(module, "module", None)
        elif kind == "OptimizedModule":
            inner = getattr(module, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            return module
        module = inner


class Held(NamedTuple):
    """A tensor under one of its names; ``module`` is the class of the part that holds it."""

    name: str
    kind: str
    persistent: bool
    module: str
    tensor: "torch.Tensor"


def tensors_of(module: "torch.nn.Module") -> "list[Held]":
    """Every parameter, then every buffer; a tied tensor under each of its names."""
    parameters, buffers = [], []
    for prefix, part in module.named_modules(remove_duplicate=False):
        start = prefix + "." if prefix else ""
        kind = class_name(part)
        for name, value in part._parameters.items():  # noqa: SLF001 - named_parameters() leaves tied names out
            if value is not None:
                parameters.append(Held(plain_name(start + name), "parameter", True, kind, value))
        for name, value in part._buffers.items():  # noqa: SLF001 - only the part tells the persistent ones
            if value is not None:
                persistent = name not in part._non_persistent_buffers_set  # noqa: SLF001 - as above
                buffers.append(Held(plain_name(start + name), "buffer", persistent, kind, value))
    return parameters + buffers


def class_name(module: "torch.nn.Module") -> str:
    """The class of a module; that of fully_shard's mixed-in classes is the model's own."""
    kind = type(module)
    mixed = [base for base in kind.__bases__ if base.__name__ != "FSDPModule"]
    return mixed[0].__name__ if len(mixed) < len(kind.__bases__) and mixed else kind.__name__


def names_by_identity(module: "torch.nn.Module | None") -> "dict[int, str]":
    """First name of each parameter by ``id``."""
    names: "dict[int, str]" = {}
    if module is not None:
        for name, value in module.named_parameters():
            names.setdefault(id(value), plain_name(name))
    return names


def owners_of(parameters: "list[torch.Tensor]") -> "list[torch.nn.Module]":
    """Living modules that hold most of the parameters any module holds, by identity.

    A module nested in another is found with it: which of them is called decides later.
    """
    wanted = {id(parameter) for parameter in parameters}
    counted = []
    for found in gc.get_objects():
        if issubclass(type(found), torch.nn.Module) and "_parameters" in vars(found):
            counted.append((len(wanted.intersection(id(value) for value in found.parameters())), found))
    most = max((count for count, _ in counted), default=0)
    return [found for count, found in counted if count == most and count]
