"""The places in torch where the recorder listens. Listeners are guarded; originals are called once."""

import sys
import weakref

import torch
import torch.utils.data.dataloader
from plumbline_recorder.collectives import Collectives
from plumbline_recorder.health import Health
from plumbline_recorder.module_calls import compiling
from plumbline_recorder.patches import Patches
from plumbline_recorder.roots import Roots
from plumbline_recorder.step_record import NOT_FINITE, StepRecord
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

CLIPS = ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_")


class TrainingHooks:
    """Listens to forward, backward, clipping and optimizer steps."""

    def __init__(
        self, health: Health, steps: StepRecord, collectives: Collectives, before_training: object
    ) -> None:
        """``before_training(root)`` is called once, before the first forward pass that is recorded."""
        self._collectives = collectives
        self._health, self._steps, self._before_training = health, steps, before_training
        self.patches = Patches()
        self.roots = Roots(self.patches, self._root_called)
        steps.roots = self.roots
        self._handles: "list[object]" = []
        self._depths = {"backward": 0, "clip": 0, "load": 0}
        self._filler: "object | None" = None
        self._known: "dict[int, object]" = {}
        self._trained = False

    def install(self) -> None:
        """Start listening."""
        replace = self.patches.replace
        replace(torch.optim.Optimizer, "__init__", self._optimizer_made)
        replace(torch.autograd, "backward", self._backward)
        for name in CLIPS:
            replace(torch.nn.utils, name, self._clip(name))
        replace(torch, "compile", self._compile)
        replace(torch.nn.functional, "cross_entropy", self._cross_entropy)
        replace(torch.nn.Module, "to_empty", self._to_empty)
        replace(torch.nn.Module, "load_state_dict", self._load_state_dict)
        replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", self._next_batch)  # noqa: SLF001
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is not None:
            replace(scaler, "step", self._scaler_step)
        self._collectives.install(self.patches, compiling)
        self.patches.rebind()
        self._handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ended),
        ]

    @property
    def optimizers(self) -> "list[object]":
        """Living optimizers, in the order in which they were made."""
        found = [reference() for reference in self._known.values()]
        return [optimizer for optimizer in found if optimizer is not None]

    def remove(self) -> None:
        """Stop listening and put everything back."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.patches.restore()

    def _root_called(self, module: "torch.nn.Module", original: object, args: tuple, kwargs: dict) -> object:
        batch = None
        if self._health.active:
            with self._health.guard("the rows that enter the model"):
                if not self._trained:
                    self._trained = True
                    self._before_training(self.roots.root())
                self._steps.next_window()
                batch = self._steps.forward_begins(module, args, kwargs)
        output = original(module, *args, **kwargs)
        if batch is not None and self._health.active:
            with self._health.guard("the model's output"):
                self._steps.forward_ended(module, batch, output)
        return output

    def _backward(self, original: object) -> object:
        def backward(tensors, grad_tensors=None, *args, **kwargs):
            if compiling() or self._depths["backward"] or not self._health.active:
                return original(tensors, grad_tensors, *args, **kwargs)
            with self._health.guard("the start of a backward pass"):
                self._steps.backward_begins(scalar_of(tensors, grad_tensors))
            self._depths["backward"] += 1
            try:
                result = original(tensors, grad_tensors, *args, **kwargs)
            finally:
                self._depths["backward"] -= 1
            if self._health.active:
                with self._health.guard("the end of a backward pass"):
                    self._steps.backward_ended()
            return result

        return backward

    def _clip(self, name: str) -> object:
        def make(original: object) -> object:
            def clip(*args, **kwargs):
                if compiling() or self._depths["clip"] or not self._health.active:
                    return original(*args, **kwargs)
                with self._health.guard("the gradients before clipping"):
                    self._steps.clip_begins()
                self._depths["clip"] += 1
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._depths["clip"] -= 1
                if self._health.active:
                    with self._health.guard("the clipping"):
                        self._steps.clip_ended(*clip_facts(name, args, kwargs, result))
                return result

            return clip

        return make

    def _compile(self, original: object) -> object:
        def compile(*args, **kwargs):
            result = original(*args, **kwargs)
            if self._health.active:
                self.roots.compiled(result)
            return result

        return compile

    def _cross_entropy(self, original: object) -> object:
        def cross_entropy(*args, **kwargs):
            if not compiling() and self._health.active:
                with self._health.guard("the targets of a cross-entropy"):
                    given = args[0] if args else kwargs.get("input")
                    target = args[1] if len(args) > 1 else kwargs.get("target")
                    self._steps.cross_entropy(given, target)
            return original(*args, **kwargs)

        return cross_entropy

    def _next_batch(self, original: object) -> object:
        def __next__(iterator):
            batch = original(iterator)
            if self._health.active:
                with self._health.guard("a batch of a data loader"):
                    self._steps.loader.saw(batch)
            return batch

        return __next__

    def fill_with(self, filler: "object | None") -> None:
        """Let ``filler.fill_module(module, point)`` fill what a load overwrites; None: none is under way."""
        self._filler = filler

    def _to_empty(self, original: object) -> object:
        def to_empty(module, *args, **kwargs):
            result = original(module, *args, **kwargs)
            self._fill(module, "materialised")
            return result

        return to_empty

    def _load_state_dict(self, original: object) -> object:
        def load_state_dict(module, *args, **kwargs):
            if not self._depths["load"]:
                self._fill(module, "before-load")
            self._depths["load"] += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depths["load"] -= 1

        return load_state_dict

    def _fill(self, module: "torch.nn.Module", point: str) -> None:
        if self._filler is not None and self._health.active:
            with self._health.guard("the fill before a load"):
                self._filler.fill_module(module, point)

    def _optimizer_made(self, original: object) -> object:
        def __init__(optimizer, *args, **kwargs):
            original(optimizer, *args, **kwargs)
            if self._health.active and not compiling():
                with self._health.guard("a new optimizer"):
                    self.meet(optimizer)

        return __init__

    def meet(self, optimizer: object) -> None:
        """Look for the module whose parameters a new optimizer holds; give late imports our wrappers."""
        self._known[id(optimizer)] = weakref.ref(optimizer)
        self.patches.rebind()
        self._fsdp()
        self.roots.search([value for group in optimizer.param_groups for value in group["params"]])

    def _fsdp(self) -> None:
        """FSDP 1 clips in a method of its own; listened to once something imported it."""
        module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        found = getattr(module, "FullyShardedDataParallel", None)
        if found is not None and not hasattr(found.clip_grad_norm_, "__plumbline__"):
            self.patches.replace(
                found, "clip_grad_norm_", self._clip("FullyShardedDataParallel.clip_grad_norm_")
            )

    def _step_begins(self, optimizer: object, args: tuple, kwargs: dict) -> "tuple[tuple, dict] | None":
        if not self._health.active or compiling():
            return None
        with self._health.guard("the start of an optimizer step"):
            known = self._known.get(id(optimizer))
            if known is None or known() is not optimizer:
                self.meet(optimizer)
            closure = kwargs.get("closure") or (args[1] if len(args) > 1 and callable(args[1]) else None)
            mine = self._steps.step_begins(optimizer, closure)
            if closure is None or mine is closure:
                return None
            if "closure" in kwargs:
                return args, {**kwargs, "closure": mine}
            return (args[0], mine, *args[2:]), kwargs
        return None

    def _step_ended(self, optimizer: object, args: tuple, kwargs: dict) -> None:
        if self._health.active and not compiling():
            with self._health.guard("the end of an optimizer step"):
                self._steps.step_ended(optimizer)

    def _scaler_step(self, original: object) -> object:
        def step(scaler, optimizer, *args, **kwargs):
            before = self._steps.steps_ended
            if self._health.active:
                with self._health.guard("a scaled step"):
                    self._steps.scaled(scaler.get_scale() if scaler.is_enabled() else None)
            result = original(scaler, optimizer, *args, **kwargs)
            if self._health.active and scaler.is_enabled() and self._steps.steps_ended == before:
                with self._health.guard("a step that was left out"):
                    self._steps.skipped(optimizer, NOT_FINITE)
            return result

        return step


def scalar_of(tensors: object, grad_tensors: object) -> "torch.Tensor | None":
    """The one scalar that a backward pass starts from; None for anything else."""
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    one = len(several) == 1 and isinstance(several[0], torch.Tensor) and several[0].numel() == 1
    plain = grad_tensors is None or (
        isinstance(grad_tensors, (tuple, list)) and all(g is None for g in grad_tensors)
    )
    return several[0] if one and plain else None


def clip_facts(name: str, args: tuple, kwargs: dict, result: object) -> "tuple[str, object, object, object]":
    """(function, maximum, norm type, returned norm) of a clipping call."""
    if name == "clip_grad_value_":
        return name, args[1] if len(args) > 1 else kwargs.get("clip_value"), float("inf"), None
    maximum = args[1] if len(args) > 1 else kwargs.get("max_norm")
    if name == "clip_grads_with_norm_":
        return name, maximum, None, args[2] if len(args) > 2 else kwargs.get("total_norm")
    return name, maximum, args[2] if len(args) > 2 else kwargs.get("norm_type", 2.0), result
