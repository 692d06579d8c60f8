"""Finds the module whose forward pass is a micro-batch: the outermost one called that holds the parameters.

Its class is given a ``__call__`` of ours. No hook is put on the module itself, so that copies and pickles of
the model carry nothing of the recorder.
"""

import weakref

import torch
from plumbline_recorder.module_calls import compiling
from plumbline_recorder.parameter_names import NameTable, owners_of, unwrapped
from plumbline_recorder.patches import Patches

COMPILED = "OptimizedModule"
"""The class of what torch.compile makes of a module."""


class Roots:
    """Modules that may be the root, and the one that was called last."""

    def __init__(self, patches: Patches, call: object) -> None:
        """``call(module, original, args, kwargs)`` stands in for the outermost call of a candidate."""
        self._patches, self._call = patches, call
        self._candidates: "dict[int, object]" = {}
        self._last: "object | None" = None
        self._watched: "set[object]" = set()
        self._names = NameTable()
        self._depth = 0

    def search(self, parameters: "list[torch.Tensor]") -> None:
        """Add the living modules that hold these parameters."""
        for module in owners_of(parameters):
            self.add(module)

    def add(self, module: "torch.nn.Module") -> None:
        """Watch a module's calls; of a wrapper those of the module inside."""
        inner = unwrapped(module)
        self._candidates[id(inner)] = weakref.ref(inner)
        self._watch_class(type(inner))
        self.compiled(module)

    def compiled(self, module: object) -> None:
        """Watch what torch.compile made: the module inside is then called by compiled code only."""
        if type(module).__name__ == COMPILED:
            self._watch_class(type(module))

    def _watch_class(self, kind: type) -> None:
        if kind.__call__ not in self._watched:
            self._patches.replace(kind, "__call__", self._watch)
            self._watched.add(kind.__call__)

    def root(self) -> "torch.nn.Module | None":
        """The module called last, or before any call the candidate with most parameters."""
        called = self._last() if self._last is not None else None
        if called is not None:
            return called
        living = [
            found for found in (reference() for reference in self._candidates.values()) if found is not None
        ]
        return max(living, key=lambda found: len(list(found.modules()))) if living else None

    def names(self, walk: bool = True) -> "dict[int, str]":
        """Names of the root's parameters by identity; without ``walk`` of the modules known so far."""
        return self._names.names(self.root(), walk)

    def _watch(self, original: object) -> object:
        roots = self

        def __call__(self, *args, **kwargs):
            if compiling() or not roots._is_outermost(self):
                return original(self, *args, **kwargs)
            return roots._enter(self, original, args, kwargs)

        return __call__

    def _is_outermost(self, module: "torch.nn.Module") -> bool:
        if self._depth or not torch.is_grad_enabled():
            return False
        return self._candidate(module) is not None

    def _candidate(self, module: "torch.nn.Module") -> "object | None":
        inner = unwrapped(module) if type(module).__name__ == COMPILED else module
        reference = self._candidates.get(id(inner))
        return reference if reference is not None and reference() is inner else None

    def _enter(self, module: "torch.nn.Module", original: object, args: tuple, kwargs: dict) -> object:
        self._last = self._candidate(module)
        self._depth += 1
        try:
            return self._call(module, original, args, kwargs)
        finally:
            self._depth -= 1
