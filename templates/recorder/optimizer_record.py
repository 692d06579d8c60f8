"""What an optimizer holds: its groups' settings, and each parameter with its gradient and state."""

from collections.abc import Iterator

import torch
from plumbline_recorder.reading import number

LISTED = 16
"""Numbers of a tuple-valued setting (betas) that are listed."""


class Naming:
    """Names of the parameters that optimizers hold: the root module's, or ``unowned.<group>.<index>``."""

    def __init__(self, names: "dict[int, str]") -> None:
        """``names``: the root's, by identity of the parameter."""
        self._names = names

    def groups(self, optimizer: object, number_: int) -> "list[list[tuple[str, torch.Tensor]]]":
        """(name, parameter) by group."""
        names = self.names(optimizer, number_)
        return [
            list(zip(names[index], group["params"]))  # noqa: B905 - Python 3.9 has no strict
            for index, group in enumerate(optimizer.param_groups)
        ]

    def names(self, optimizer: object, number_: int) -> "list[list[str]]":
        """Names by group. A parameter that no module of the model holds is named by its place."""
        prefix = "unowned." if number_ == 0 else "unowned.%d." % number_
        found = []
        for group, entry in enumerate(optimizer.param_groups):
            names = list(map(self._names.get, map(id, entry["params"])))
            if None in names:
                names = [
                    "%s%d.%d" % (prefix, group, index) if name is None else name
                    for index, name in enumerate(names)
                ]
            found.append(names)
        return found


def settings_of(group: "dict[str, object]") -> "dict[str, object]":
    """Every scalar hyperparameter of a group, as of now."""
    found: "dict[str, object]" = {}
    for key, value in group.items():
        if key in ("params", "param_names"):
            continue
        if value is None or isinstance(value, (bool, int, float, str)):
            found[str(key)] = value
        elif isinstance(value, torch.Tensor):
            found[str(key)] = number(value)
        elif isinstance(value, (tuple, list)) and len(value) <= LISTED:
            listed = [number(entry) for entry in value]
            if None not in listed:
                found[str(key)] = listed
    return found


def state_of(optimizer: object, parameter: "torch.Tensor") -> "Iterator[tuple[str, object]]":
    """(key, tensor or number) of a parameter's state; entries of nested dictionaries as ``outer.inner``."""
    states = optimizer.state
    if parameter in states:
        yield from _entries("", states[parameter])


def _entries(prefix: str, state: object) -> "Iterator[tuple[str, object]]":
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _entries(prefix + "." + str(key) if prefix else str(key), value)
    elif isinstance(state, torch.Tensor) or (isinstance(state, (int, float)) and not isinstance(state, bool)):
        yield prefix, state
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from _entries("%s.%d" % (prefix, index), value)
