"""Replaces functions of torch by wrappers, also where a framework imported them early, and puts them back."""

import functools
import sys

MISSING = object()


class Patches:
    """Everything that was replaced, in order."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._replaced: "list[tuple[object, str, object, object]]" = []

    def replace(self, owner: object, name: str, make: object) -> None:
        """Set ``owner.name`` to ``make(original)``, which looks like it; nothing where there is none."""
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapper = functools.wraps(original)(make(original))
        wrapper.__plumbline__ = original
        own = vars(owner).get(name, MISSING)
        setattr(owner, name, wrapper)
        self._replaced.append((owner, name, own, wrapper))

    def alias(self, owner: object, name: str, wrapper: object) -> None:
        """Let ``owner.name`` be a wrapper that stands elsewhere already."""
        own = vars(owner).get(name, MISSING)
        setattr(owner, name, wrapper)
        self._replaced.append((owner, name, own, wrapper))

    def rebind(self) -> None:
        """Give the wrapper to every module that imported the original under any name."""
        wrappers = {}
        for _, _, own, wrapper in self._replaced:
            if own is not MISSING and callable(own):
                wrappers[id(own)] = (own, wrapper)
        for module in list(sys.modules.values()):
            space = getattr(module, "__dict__", None)
            if type(space) is not dict or str(space.get("__name__", "")).startswith("plumbline_recorder"):
                continue
            for name, value in list(space.items()):
                found = wrappers.get(id(value))
                if found is not None and found[0] is value:
                    space[name] = found[1]
                    self._replaced.append((module, name, value, found[1]))

    def restore(self) -> None:
        """Put every original back, last first, where our wrapper still stands."""
        for owner, name, own, wrapper in reversed(self._replaced):
            if vars(owner).get(name) is not wrapper:
                continue
            if own is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._replaced.clear()
