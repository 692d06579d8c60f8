"""One forward and backward pass: what entered the model, what the loss was, how many tokens it looked at."""

import inspect
import weakref

import torch
from plumbline_recorder.reading import dtype_name, local, number, quiet

IGNORED = -100
LARGEST_INPUT = 1 << 26
"""Elements; a larger input is no token array."""
ARGUMENTS: "weakref.WeakKeyDictionary[type, list[str]]" = weakref.WeakKeyDictionary()
"""Names of forward's arguments by class: asking for them takes longer than all else of a batch."""


class MicroBatch:
    """What is known of one forward pass of the root module."""

    def __init__(self, inputs: "dict[str, torch.Tensor]") -> None:
        """``inputs``: the whole-number tensors of the call, by argument name."""
        self.inputs = inputs
        self.labels: "torch.Tensor | None" = inputs.get("labels")
        self.shifted = False
        if self.labels is None and inputs.get("shift_labels") is not None:
            self.labels, self.shifted = inputs["shift_labels"], True
        self.loss: "torch.Tensor | None" = None
        self.logits: "torch.Tensor | None" = None
        self.log_probs: "torch.Tensor | None" = None
        self.logits_dtype: "str | None" = None
        self.differentiated: "torch.Tensor | None" = None
        self.modes: "dict[str, object] | None" = None
        self._reached: "set[bool] | None" = None
        self.went_back = False

    @property
    def ids(self) -> "torch.Tensor | None":
        """The token ids [B, T]: ``input_ids``, or else the first input of two dimensions."""
        if "input_ids" in self.inputs:
            return self.inputs["input_ids"]
        named = ("labels", "attention_mask", "position_ids", "shift_labels")
        rest = [value for name, value in self.inputs.items() if name not in named and value.ndim == 2]
        return next((value for value in rest if value.dtype != torch.bool), None)

    def release(self) -> None:
        """Let go of the tensors: numbers were taken."""
        self.inputs, self.labels, self.loss, self.logits, self.log_probs = {}, None, None, None, None

    def take_output(self, output: object, keep_logits: bool) -> bool:
        """Take loss and logits of the root's output; False when no gradient can come from it.

        Nothing is held that would keep the graph or the logits alive, unless ``keep_logits``.
        """
        loss, logits = loss_of(output), logits_of(output)
        found = [value for value in (loss, logits) if value is not None]
        self._watch(output)
        if not any(value.requires_grad for value in found) and (found or not _requires_grad(output)):
            return False
        with quiet():
            self.loss = None if loss is None else local(loss).clone()
        self.logits_dtype = None if logits is None else dtype_name(logits.dtype)
        self.logits = logits if keep_logits else None
        self.log_probs = log_probs_of(output) if keep_logits and logits is None else None
        return True

    def _watch(self, output: object) -> None:
        """See whether a backward pass comes here: the mode of an evaluation with gradients on is no fault."""
        if self.modes is None or not any(one["trained"] for one in self.modes["inactive"]):
            return
        followed = [value for value in _values(output) if _requires_grad(value)]
        tensors = [value for value in followed if isinstance(value, torch.Tensor)]
        if len(tensors) == len(followed) > 0:
            self._reached = reached = set()
            for value in tensors:
                value.register_hook(lambda _: reached.add(True))

    def take_targets(self, target: "torch.Tensor") -> None:
        """Targets of a cross-entropy outside the model, whole or without each row's last position."""
        ids = self.ids
        if self.labels is not None or ids is None or ids.ndim != 2:
            return
        rows, length = ids.shape
        with quiet():
            if target.numel() == rows * length:
                self.labels, self.shifted = target.detach().reshape(rows, length), True
            elif target.numel() == rows * (length - 1):
                ends = target.new_full((rows, 1), IGNORED)
                self.labels = torch.cat([target.detach().reshape(rows, length - 1), ends], dim=-1)
                self.shifted = True

    def targets(self) -> "torch.Tensor | None":
        """For each logit position the token that it has to predict [B, T], `IGNORED` where it has none."""
        if self.labels is None or self.shifted:
            return self.labels
        ends = self.labels.new_full((*self.labels.shape[:-1], 1), IGNORED)
        return torch.cat([self.labels[..., 1:], ends], dim=-1)

    def supervised(self) -> "int | None":
        """How many positions have a target; where labels are not shifted a row's first is of none."""
        if self.labels is None:
            return None
        targets = self.labels if self.shifted else self.labels[..., 1:]
        return _count(targets != IGNORED)

    def line(self) -> "dict[str, object]":
        """Its part of the line in ``steps.jsonl``."""
        with quiet():
            ids, supervised = self.ids, self.supervised()
            mask = self.inputs.get("attention_mask")
            tokens = None if ids is None else ids.numel()
            if mask is not None and ids is not None and mask.shape == ids.shape:
                tokens = _count(local(mask) != 0)
        return {
            "rows": None if ids is None else int(ids.shape[0]),
            "tokens": tokens,
            "supervised": supervised,
            "loss": number(self.loss),
            "differentiated": number(self.differentiated),
            "logits_dtype": self.logits_dtype,
            "modes": self.modes if self.went_back and self._reached != set() else None,
        }


def inputs_of(module: "torch.nn.Module", args: tuple, kwargs: dict) -> "dict[str, torch.Tensor]":
    """The whole-number tensors of a call of at most two dimensions, by argument name."""
    named = dict(kwargs)
    names = _positions(module) if args else []
    for index, value in enumerate(args):
        if isinstance(value, dict) or hasattr(value, "input_ids"):
            named.update({str(key): entry for key, entry in dict(value).items()})
        else:
            named.setdefault(names[index] if index < len(names) else "argument_%d" % index, value)
    return {name: value for name, value in named.items() if _is_token_array(value)}


def _positions(module: "torch.nn.Module") -> "list[str]":
    known = ARGUMENTS.get(type(module)) if "forward" not in vars(module) else None
    if known is not None:
        return known
    try:
        found = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []
    if "forward" not in vars(module):
        ARGUMENTS[type(module)] = found
    return found


def _count(mask: "torch.Tensor") -> int:
    """How many elements hold; `count_nonzero` is quicker, and known to plain tensors at least."""
    return int(torch.count_nonzero(mask) if type(mask) is torch.Tensor else mask.sum())


def _is_token_array(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim > 2 or value.numel() > LARGEST_INPUT:
        return False
    return not value.is_floating_point() and not value.is_complex()


def loss_of(output: object) -> "torch.Tensor | None":
    """The scalar loss that a model returned, by the field's conventions."""
    found = _field(output, "loss")
    if found is None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        found = first if isinstance(first, torch.Tensor) and first.ndim == 0 else None
    return found if isinstance(found, torch.Tensor) and found.numel() == 1 else None


def logits_of(output: object) -> "torch.Tensor | None":
    """The logits [B, T, V] that a model returned; None where there are none (a fused loss)."""
    found = _field(output, "logits")
    if found is None:
        several = output if isinstance(output, (tuple, list)) else [output]
        found = next((each for each in several if isinstance(each, torch.Tensor) and each.ndim == 3), None)
    is_logits = isinstance(found, torch.Tensor) and found.ndim == 3 and found.is_floating_point()
    return found if is_logits else None


def log_probs_of(output: object) -> "torch.Tensor | None":
    """The log-probabilities of the next tokens that a fused last layer returned in place of logits."""
    found = _field(output, "log_probs")
    return found if isinstance(found, torch.Tensor) and found.ndim == 2 and found.requires_grad else None


def _values(output: object) -> "list[object]":
    """What a model's output holds."""
    if isinstance(output, dict):
        return list(output.values())
    if isinstance(output, (tuple, list)):
        return list(output)
    return [output] if isinstance(output, torch.Tensor) else list(getattr(output, "__dict__", {}).values())


def _field(output: object, name: str) -> object:
    if isinstance(output, dict):
        return output.get(name)
    return None if isinstance(output, (torch.Tensor, tuple, list)) else getattr(output, name, None)


def _requires_grad(output: object) -> bool:
    if isinstance(output, torch.Tensor):
        return output.requires_grad
    if isinstance(output, dict):
        return any(_requires_grad(value) for value in output.values())
    return isinstance(output, (tuple, list)) and any(_requires_grad(value) for value in output)
