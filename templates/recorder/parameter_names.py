"""Names of parameters as the model itself gives them, without what wrappers put before and between."""

import gc
import weakref
from collections.abc import Iterator
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


class NameTable:
    """Names of a module's parameters by identity, from where they lie: the tree is walked once in a while.

    A parameter that was exchanged since lies in the same place, so its new identity has its name.
    """

    def __init__(self) -> None:
        """No module was looked at yet."""
        self._root: "object | None" = None
        self._places: "tuple[tuple[dict, ...], tuple[str, ...], tuple[str, ...]]" = ((), (), ())
        self._last: "tuple[list[int], dict[int, str]]" = ([], {})

    def names(self, root: "torch.nn.Module | None", walk: bool) -> "dict[int, str]":
        """First name of each parameter by ``id``; ``walk``: look for modules that were added or removed."""
        if root is None:
            return {}
        if walk or self._root is None or self._root() is not root:
            self._root, found = weakref.ref(root), list(places_of(root))
            self._places = tuple(zip(*found)) if found else ((), (), ())  # noqa: B905 - Python 3.9 has no strict
            self._last = ([], {})
        tables, keys, names = self._places
        values = list(map(dict.get, tables, keys))
        numbers = list(map(id, values))
        if numbers != self._last[0]:
            each = {}
            for number, value, name in zip(numbers, values, names):  # noqa: B905 - as above
                if value is not None:
                    each.setdefault(number, name)
            self._last = (numbers, each)
        return self._last[1]


def places_of(root: "torch.nn.Module") -> "Iterator[tuple[dict[str, torch.Tensor], str, str]]":
    """(table of a part's parameters, key in it, name in the model) of every parameter."""
    for prefix, part in root.named_modules():
        start = prefix + "." if prefix else ""
        for key in part._parameters:  # noqa: SLF001 - the table itself follows an exchange
            yield part._parameters, key, plain_name(start + key)  # noqa: SLF001 - as above


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
