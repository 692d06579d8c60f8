"""Follows a few linear layers: a reader recomputes their weight gradient from inputs and output gradients."""

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.parameter_names import plain_name

WITNESSES = 2
LARGEST_WIDTH = 8192
"""in + out features of a witness: its input and output gradient are written for every position."""


def choose(root: "torch.nn.Module") -> "list[tuple[str, torch.nn.Linear]]":
    """The last linear layers whose weight is trained and used under one name only."""
    uses: "dict[int, int]" = {}
    for _, value in root.named_parameters(remove_duplicate=False):
        uses[id(value)] = uses.get(id(value), 0) + 1
    found = [
        (plain_name(name), module)
        for name, module in root.named_modules()
        if type(module).__name__.endswith("Linear")
        and isinstance(module, torch.nn.Linear)
        and module.weight.requires_grad
        and uses.get(id(module.weight)) == 1
        and module.in_features + module.out_features <= LARGEST_WIDTH
    ]
    return found[-WITNESSES:]


class Pass:
    """One call of a witness: its input, and the gradient of its output when the backward pass brought it."""

    def __init__(self, given: "torch.Tensor", health: Health) -> None:
        """Keep the input: autograd keeps it too, for the weight's gradient."""
        self.given = given
        self.gradient: "torch.Tensor | None" = None
        self.fired = 0
        self._health = health

    def __call__(self, gradient: "torch.Tensor") -> None:
        with self._health.guard("the output gradient of a linear layer"):
            self.fired += 1
            self.gradient = gradient.detach()


class Witnesses:
    """The witnesses of one fully recorded step; hooks stay on the modules for that step only."""

    def __init__(self, root: "torch.nn.Module", health: Health) -> None:
        """Put a forward hook on each witness."""
        self._health = health
        self._passes: "dict[str, list[Pass]]" = {}
        self._handles = [
            module.register_forward_hook(self._hook(name), with_kwargs=True) for name, module in choose(root)
        ]

    def _hook(self, name: str) -> object:
        def hook(module: object, args: tuple, kwargs: dict, output: object) -> None:
            with self._health.guard("a linear layer's input"):
                given = args[0] if args else kwargs.get("input")
                if self._health.active and isinstance(output, torch.Tensor) and output.requires_grad:
                    followed = Pass(given.detach(), self._health)
                    output.register_hook(followed)
                    self._passes.setdefault(name, []).append(followed)

        return hook

    def take(self) -> "dict[str, torch.Tensor]":
        """``<module>.input`` and ``.grad_output`` of witnesses that one backward pass went through once."""
        passes, self._passes = self._passes, {}
        found = {}
        for name, several in passes.items():
            used = [each for each in several if each.fired]
            if len(used) == 1 and used[0].fired == 1:
                found[name + ".input"] = used[0].given
                found[name + ".grad_output"] = used[0].gradient
        return found

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
