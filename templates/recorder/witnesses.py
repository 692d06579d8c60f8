"""Follows a few linear layers: a reader recomputes their weight gradient from inputs and output gradients."""

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.module_calls import ModuleCalls
from plumbline_recorder.parameter_names import plain_name
from plumbline_recorder.reading import local, quiet

WITNESSES, WATCHED = 2, 8
LARGEST_WIDTH = 8192
"""in + out features of a witness: its input and output gradient are written for every position."""


def choose(root: "torch.nn.Module") -> "list[tuple[str, torch.nn.Module]]":
    """The last linear layers whose weight is trained and used under one name only."""
    uses: "dict[int, int]" = {}
    for _, value in root.named_parameters(remove_duplicate=False):
        uses[id(value)] = uses.get(id(value), 0) + 1
    found = [
        (plain_name(name), module)
        for name, module in root.named_modules()
        if is_linear(module)
        and module.weight.requires_grad
        and uses.get(id(module.weight)) == 1
        and sum(module.weight.shape) <= LARGEST_WIDTH
    ]
    return found[-WATCHED:]


def is_linear(module: "torch.nn.Module") -> bool:
    """Whether a module multiplies by its weight alone: torch's Linear, or the Conv1D of GPT-2."""
    kind = type(module).__name__
    return (kind.endswith("Linear") and isinstance(module, torch.nn.Linear)) or is_transposed(module)


def is_transposed(module: "torch.nn.Module") -> bool:
    """Whether its weight is [in, out]: GPT-2's Conv1D (transformers), which has ``nf`` outputs."""
    weight = getattr(module, "weight", None)
    is_matrix = isinstance(weight, torch.Tensor) and weight.ndim == 2
    return type(module).__name__ == "Conv1D" and is_matrix and getattr(module, "nf", None) == weight.shape[1]


class Pass:
    """One call of a witness: its input, and the gradient of its output when the backward pass brought it."""

    def __init__(self, given: "torch.Tensor", health: Health) -> None:
        """Keep the input: autograd keeps it too, for the weight's gradient."""
        self.given = given
        self.gradient: "torch.Tensor | None" = None
        self._health = health

    def __call__(self, gradient: "torch.Tensor") -> None:
        with self._health.guard("the output gradient of a linear layer"):
            self.gradient = gradient.detach()


class Witnesses:
    """The witnesses of one fully recorded step; listened to for that step only."""

    def __init__(self, root: "torch.nn.Module", health: Health) -> None:
        """Listen to the last linear layers."""
        self._health = health
        self._passes: "dict[str, list[Pass]]" = {}
        self._chosen: "list[str] | None" = None
        watched = choose(root)
        self._transposed = {name for name, module in watched if is_transposed(module)}
        self._widths = {
            name: tuple(module.weight.shape) if name in self._transposed else tuple(module.weight.shape)[::-1]
            for name, module in watched
        }
        self._calls = ModuleCalls([(module, self._listener(name)) for name, module in watched])

    def _listener(self, name: str) -> object:
        def called(args: tuple, kwargs: dict, output: object) -> None:
            with self._health.guard("a linear layer's input"):
                given = args[0] if args else next(iter(kwargs.values()), None)
                if self._health.active and isinstance(output, torch.Tensor) and output.requires_grad:
                    followed = Pass(given.detach(), self._health)
                    output.register_hook(followed)
                    self._passes.setdefault(name, []).append(followed)

        return called

    def take(self) -> "dict[str, torch.Tensor]":
        """``<module>.input`` and ``.grad_output`` of the last layers that the backward pass went through.

        The layers of a step's first micro-batch stay its witnesses. One called several times has its
        positions one after the other, [n, in] and [n, out]; one that a later pass left out has none, n = 0.
        """
        passes, self._passes = self._passes, {}
        used = {
            name: [one for one in several if one.gradient is not None] for name, several in passes.items()
        }
        if self._chosen is None:
            self._chosen = [name for name in self._widths if used.get(name)][-WITNESSES:]
        found = {}
        for name in self._chosen:
            found[name + ".input"], found[name + ".grad_output"] = self._joined(name, used.get(name, []))
        return found

    @property
    def transposed(self) -> "list[str]":
        """The witnesses whose weight is [in, out]."""
        return [name for name in self._chosen or () if name in self._transposed]

    def _joined(self, name: str, used: "list[Pass]") -> "tuple[torch.Tensor, torch.Tensor]":
        if len(used) == 1:
            return used[0].given, used[0].gradient
        with quiet():
            inner, outer = self._widths[name]
            inputs = [local(one.given).reshape(-1, inner) for one in used] or [torch.zeros(0, inner)]
            gradients = [local(one.gradient).reshape(-1, outer) for one in used] or [torch.zeros(0, outer)]
            return torch.cat(inputs), torch.cat(gradients)

    def remove(self) -> None:
        """Stop listening."""
        self._calls.remove()
