"""Measures the factor with which each LoRA layer adds its adapter, from gradients alone.

A LoRA layer returns base(x) + s B(A(x)). With g the gradient at the layer's output and gB the one at B's
output, gB = s g whatever the loss: ``scaling`` = <gB, g> / <g, g>, ``residual`` = |gB - s g| / |gB|.
"""

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.module_calls import ModuleCalls
from plumbline_recorder.parameter_names import plain_name
from plumbline_recorder.reading import local, quiet


def layers_of(root: "torch.nn.Module") -> "list[tuple[str, torch.nn.Module, torch.nn.Module]]":
    """(name, layer, its B) of every LoRA layer; ``layer:adapter`` names a layer's further adapters."""
    found = []
    for name, module in root.named_modules():
        seconds = getattr(module, "lora_B", None)
        if isinstance(seconds, torch.nn.ModuleDict) and hasattr(module, "base_layer"):
            for index, (adapter, second) in enumerate(seconds.items()):
                place = plain_name(name) if index == 0 else "%s:%s" % (plain_name(name), adapter)
                found.append((place, module, second))
    return found


class Call:
    """One call of a LoRA layer: the gradient at its output comes before that at B's output."""

    def __init__(self, name: str, found: "dict[str, object]", health: Health) -> None:
        """``found``: where the measurement goes."""
        self._name, self._found, self._health = name, found, health
        self._whole: "torch.Tensor | None" = None

    def whole(self, gradient: "torch.Tensor") -> None:
        """The gradient at the layer's output."""
        self._whole = gradient.detach()

    def second(self, gradient: "torch.Tensor") -> None:
        """The gradient at B's output."""
        with self._health.guard("the gradient of an adapter"):
            whole, self._whole = self._whole, None
            if whole is not None and whole.shape == gradient.shape:
                self._found[self._name] = measured(whole, gradient)


def measured(whole: "torch.Tensor", second: "torch.Tensor") -> "dict[str, float]":
    """Factor and what it leaves over; 0 and 0 where no gradient came."""
    with quiet():
        g, gb = local(whole).float(), local(second).float()
        square = float((g * g).sum(dtype=torch.float64))
        scaling = float((gb * g).sum(dtype=torch.float64)) / square if square > 0 else 0.0
        norm = float(torch.linalg.vector_norm(gb, dtype=torch.float64))
        rest = float(torch.linalg.vector_norm(gb - scaling * g, dtype=torch.float64))
        return {"scaling": scaling, "residual": rest / norm if norm > 0 else 0.0}


class Adapters:
    """The LoRA layers of one fully recorded step; listened to for that step only."""

    def __init__(self, root: "torch.nn.Module", health: Health) -> None:
        """Listen to each layer and its B."""
        self._health = health
        self._names: "list[str]" = []
        self._found: "dict[str, object]" = {}
        self._open: "dict[str, Call]" = {}
        listeners: "list[tuple[torch.nn.Module, object]]" = []
        for name, layer, second in layers_of(root):
            self._names.append(name)
            listeners += [(second, self._second_called(name)), (layer, self._layer_called(name))]
        self._calls = ModuleCalls(listeners)

    def _second_called(self, name: str) -> object:
        def called(args: tuple, kwargs: dict, output: object) -> None:
            with self._health.guard("an adapter's output"):
                if self._health.active and isinstance(output, torch.Tensor) and output.requires_grad:
                    self._open[name] = call = Call(name, self._found, self._health)
                    output.register_hook(call.second)

        return called

    def _layer_called(self, name: str) -> object:
        def called(args: tuple, kwargs: dict, output: object) -> None:
            with self._health.guard("an adapted layer's output"):
                call = self._open.pop(name, None)
                if call is not None and isinstance(output, torch.Tensor) and output.requires_grad:
                    output.register_hook(call.whole)

        return called

    def take(self) -> "dict[str, object]":
        """What the last backward pass showed of each layer: None where nothing was seen."""
        found = {name: self._found.get(name) for name in self._names}
        self._found.clear()
        return found

    def remove(self) -> None:
        """Stop listening."""
        self._calls.remove()
