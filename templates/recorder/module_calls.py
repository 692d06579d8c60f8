"""Listens to the calls of some modules through their classes: the modules themselves carry nothing of it."""

import torch
from plumbline_recorder.patches import Patches


def compiling() -> bool:
    """Whether torch.compile is tracing this very line."""
    return torch.compiler.is_compiling()


class ModuleCalls:
    """After a call of a module its listener is given ``(args, kwargs, output)``."""

    def __init__(self, listeners: "list[tuple[torch.nn.Module, object]]") -> None:
        """Several listeners of one module are called in their order."""
        self._patches = Patches()
        self._listeners: "dict[int, list[object]]" = {}
        self._modules = [module for module, _ in listeners]  # an id stays theirs while they live
        for module, listener in listeners:
            self._listeners.setdefault(id(module), []).append(listener)
        heard: "set[object]" = set()
        for kind in sorted({type(module) for module in self._modules}, key=lambda kind: len(kind.__mro__)):
            if kind.__call__ not in heard:  # a class has its base's, unless it defines one of its own
                self._patches.replace(kind, "__call__", self._listen)
                heard.add(kind.__call__)

    def _listen(self, original: object) -> object:
        calls = self

        def __call__(self, *args, **kwargs):
            output = original(self, *args, **kwargs)
            if not compiling():
                for listener in calls._listeners.get(id(self), ()):
                    listener(args, kwargs, output)
            return output

        return __call__

    def remove(self) -> None:
        """Stop listening."""
        self._patches.restore()
        self._listeners, self._modules = {}, []
