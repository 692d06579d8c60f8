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

    def rebind(self) -> None:
        """Give the wrapper to every module that imported the original under any name."""
        for module, name, own, wrapper in _bound(self._pairs()):
            setattr(module, name, wrapper)
            self._replaced.append((module, name, own, wrapper))

    def _pairs(self) -> "list[tuple[object, object]]":
        """(original, wrapper) of each function that was replaced under its own name."""
        return [(own, wrapper) for _, _, own, wrapper in self._replaced if own is not MISSING]

    def restore(self) -> None:
        """Put every original back, last first, where our wrapper still stands."""
        for owner, name, own, wrapper in reversed(self._replaced):
            if vars(owner).get(name) is not wrapper:
                continue
            if own is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        # A module that was imported meanwhile took the wrapper for the original.
        for module, name, _, original in _bound([(wrapper, own) for own, wrapper in self._pairs()]):
            setattr(module, name, original)
        self._replaced.clear()


def _bound(pairs: "list[tuple[object, object]]") -> "list[tuple[object, str, object, object]]":
    """(module, name, found, wanted) of every name of a module that is the first of a pair."""
    wanted = {id(first): (first, second) for first, second in pairs}
    found = []
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", None)
        if type(space) is not dict or str(space.get("__name__", "")).startswith("plumbline_recorder"):
            continue
        for name, value in list(space.items()):
            pair = wanted.get(id(value))
            if pair is not None and pair[0] is value:
                found.append((module, name, value, pair[1]))
    return found
