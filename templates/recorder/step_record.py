"""Follows a rank's optimizer steps: micro-batches before each, its settings, on asked steps its tensors."""

import time
from pathlib import Path

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.journal import Journal
from plumbline_recorder.loader_labels import LoaderLabels
from plumbline_recorder.log_prob_record import LogProbRecord
from plumbline_recorder.logit_record import LogitRecord
from plumbline_recorder.micro_batches import MicroBatch, inputs_of
from plumbline_recorder.module_modes import ModuleModes
from plumbline_recorder.optimizer_record import Naming
from plumbline_recorder.reading import local, number, quiet
from plumbline_recorder.recording import Recording
from plumbline_recorder.roots import Roots
from plumbline_recorder.step_file import StepFile
from plumbline_recorder.step_window import Step, Window

NOT_FINITE = "the gradient scaler met a gradient that is not finite"
"""Why a step was left out."""


class StepRecord:
    """Writes ``steps.jsonl`` and the step files."""

    def __init__(self, recording: Recording, health: Health, journal: Journal) -> None:
        """Nothing is open yet."""
        self._recording, self._health, self._journal = recording, health, journal
        self._folder: Path = recording.records
        self.roots: "Roots | None" = None
        self.loader = LoaderLabels()
        self._modes = ModuleModes()
        self._window: "Window | None" = None
        self._open_steps: "list[Step]" = []
        self._numbers: "dict[int, tuple[int, object]]" = {}
        self._done = 0
        self._ended = time.perf_counter()
        health.on_failure(self.discard)

    # The forward and backward pass

    def forward_begins(self, module: "torch.nn.Module", args: tuple, kwargs: dict) -> MicroBatch:
        """The root is about to be called."""
        window = self._current()
        if window.full and not self._compiled(module):
            window.follow(self.roots.root(), self._health)
        batch = MicroBatch(inputs_of(module, args, kwargs))
        batch.modes = self._modes.take(self.roots.root(), walk=window.full)
        return batch

    def forward_ended(self, module: "torch.nn.Module", batch: MicroBatch, output: object) -> None:
        """The root returned; a pass that no gradient can come from is no micro-batch."""
        window = self._current()
        follow = window.full and not self._compiled(module)
        if not batch.take_output(output, follow):
            return
        record = None
        if follow:
            if batch.log_probs is not None:
                record = LogProbRecord(batch, self._health)
            elif batch.logits is None:
                self._journal.unavailable(
                    "logits", "the model returned none: its loss is fused with the last layer"
                )
            else:
                record = LogitRecord(batch, self._recording.label_smoothing, self._health)
        window.batches.append((batch, record))

    def cross_entropy(self, given: object, target: object) -> None:
        """A cross-entropy is computed: its targets are the labels where the model is given none."""
        if not (isinstance(given, torch.Tensor) and isinstance(target, torch.Tensor)):
            return
        pending = self._pending()
        if pending and not target.is_floating_point():
            pending[-1][0].take_targets(target)

    def backward_begins(self, value: "torch.Tensor | None") -> None:
        """A backward pass starts from ``value`` (None: not from one scalar)."""
        pending = self._pending()
        if pending and value is not None:
            with quiet():
                pending[-1][0].differentiated = local(value).clone()
        for batch, record in pending:
            batch.went_back = True
            if batch.labels is None and batch.ids is not None:
                batch.labels = self.loader.labels_of(batch.ids)
            if record is not None:
                record.before_backward()

    def backward_ended(self) -> None:
        """The gradients are there: write the micro-batches that it went through."""
        self._flush_batches(self._window)

    def _pending(self) -> "list[tuple[MicroBatch, LogitRecord | None]]":
        window = self._window
        return [] if window is None else [each for each in window.batches if not each[0].went_back]

    def _flush_batches(self, window: "Window | None") -> None:
        while window is not None and window.written < len(window.batches):
            batch, record = window.batches[window.written]
            if not batch.went_back and not self._open_steps:
                return
            line = batch.line()
            if window.adapters is not None:
                line["adapters"] = window.adapters.take()
            window.lines.append(line)
            if window.full:
                self._write_batch(window, batch, record)
            batch.release()
            window.written += 1

    def _write_batch(self, window: Window, batch: MicroBatch, record: "LogitRecord | None") -> None:
        values: "dict[str, torch.Tensor]" = {}
        if record is not None:
            values.update(record.values)
            if record.missing:
                self._journal.unavailable("token_weight", record.missing)
        if batch.labels is None:
            self._journal.unavailable("labels", "neither the model nor the loss was given any")
        if window.witnesses is not None:
            seen = window.witnesses.take()
            values.update({"witness." + name: value for name, value in seen.items()})
            self._file(window).transposed = window.witnesses.transposed
        self._file(window).micro_batch(window.written, batch, values)

    # The gradients and the optimizer

    def clip_begins(self) -> None:
        """Gradients are about to be clipped: keep them as they are."""
        window = self._window
        if window is not None and window.raw is None and window.full:
            window.raw = self._raw(window, self._all_held())

    def clip_ended(self, kind: str, max_norm: object, norm_type: object, returned: object) -> None:
        """Gradients were clipped."""
        window = self._window
        if window is None:
            return
        clip = {"kind": kind, "max_norm": number(max_norm), "norm_type": number(norm_type)}
        clip["returned"] = number(returned)
        if hasattr(returned, "placements") and hasattr(returned, "_local_tensor"):
            clip["returned_placement"] = [str(placement) for placement in returned.placements]
        window.clips.append(clip)

    def step_begins(self, optimizer: object, closure: object) -> object:
        """An optimizer steps; returns the closure to call in place of the one given."""
        for open_step in self._open_steps:
            open_step.holds_others = True
        number_ = self._numbers.get(id(optimizer), (len(self._numbers), None))[0]
        window = self._current()
        if number_ in window.stepped or id(optimizer) in window.left_out:
            self._finish()
            window = self._current()
        step = Step(optimizer, number_, Naming(self._names(optimizer, window)).names(optimizer, number_))
        self._open_steps.append(step)
        self._flush_batches(window)
        if not window.full:
            return closure
        with quiet():
            self._file(window).parameters("before", optimizer, step.held)
        if closure is None:
            self._gradients(window, step)
            return None
        return self._closure(closure, window, step)

    def _names(self, optimizer: object, window: Window) -> "dict[int, str]":
        """The root's names; its tree is walked in full steps, and where a parameter has none."""
        names = self.roots.names(walk=window.full)
        for group in () if window.full else optimizer.param_groups:
            if not names.keys() >= set(map(id, group["params"])):
                return self.roots.names()
        return names

    def _closure(self, closure: object, window: Window, step: Step) -> object:
        def call() -> object:
            result = closure()
            with self._health.guard("the gradients of a closure"):
                if self._health.active:
                    self._flush_batches(window)
                    self._gradients(window, step)
            return result

        return call

    def _gradients(self, window: Window, step: Step) -> None:
        scale = number(getattr(step.optimizer, "grad_scale", None))  # of a fused step, which unscales itself
        with quiet():
            if window.raw is None or not set(window.raw).issuperset(_with_gradient(step.held)):
                window.raw = {**(window.raw or {}), **self._raw(window, step.held, scale)}
            window.used.update(self._file(window).gradients("used", step.held, scale))

    def _raw(
        self, window: Window, held: "list[tuple[str, torch.Tensor]]", scale: "float | None" = None
    ) -> "dict[str, float]":
        with quiet():
            return self._file(window).gradients("raw", held, scale)

    def _all_held(self) -> "list[tuple[str, torch.Tensor]]":
        """Every parameter of the root; the optimizers' own names come at the step."""
        root = self.roots.root()
        names = self.roots.names()
        return [] if root is None else [(names[id(value)], value) for value in root.parameters()]

    def step_ended(self, optimizer: object) -> None:
        """The optimizer stepped."""
        step = next((each for each in reversed(self._open_steps) if each.optimizer is optimizer), None)
        if step is None:
            return
        self._open_steps.remove(step)
        if step.holds_others:
            return
        self._numbers.setdefault(id(optimizer), (step.number, optimizer))
        window = self._current()
        self._flush_batches(window)
        if number(getattr(optimizer, "found_inf", None)):  # a fused step that leaves itself out
            self.skipped(optimizer, NOT_FINITE)
            return
        if window.full:
            with quiet():
                self._file(window).parameters("after", optimizer, step.held)
        window.stepped.add(step.number)
        self._journal.write("steps", self._line(window, step))

    def _line(self, window: Window, step: Step) -> "dict[str, object]":
        now = time.perf_counter()
        seconds, self._ended = now - self._ended, now
        groups = [{"params": names, **settings} for names, settings in _pairs(step.names, step.settings)]
        mine = {name for name, _ in step.held} if window.full else set()
        raw, used = (
            {name: value for name, value in squares.items() if name in mine}
            for squares in (window.raw or {}, window.used)
        )
        return {
            "format": 1,
            "step": window.step,
            "epoch": None,
            "recorded": "full" if window.full else "metrics",
            "optimizer": {"class": type(step.optimizer).__name__, "number": step.number},
            "micro_batches": window.lines,
            "groups": groups,
            "loss_scale": window.loss_scale,
            "clip": window.clips[0] if window.clips else None,
            "more_clips": window.clips[1:],
            "gradient_squares_raw": raw,
            "gradient_squares_used": used,
            "seconds": seconds,
        }

    def scaled(self, scale: "float | None") -> None:
        """A gradient scaler is about to step: its factor is in the losses and gradients of this window."""
        self._current().loss_scale = scale

    def skipped(self, optimizer: object, why: str) -> None:
        """An optimizer's step was left out on purpose (a gradient scaler met inf or NaN): one event a window.

        Other optimizers of the same window may step still, or be left out too.
        """
        window = self._current()
        known = self._numbers.get(id(optimizer))
        if id(optimizer) in window.left_out or (known is not None and known[0] in window.stepped):
            self._finish()
            window = self._current()
        self._flush_batches(window)
        if not window.left_out:
            self._journal.write("events", {"event": "skipped", "step": window.step, "why": why})
        window.left_out[id(optimizer)] = optimizer

    @property
    def steps_ended(self) -> int:
        """How many optimizer steps ended, of all optimizers; to see whether a call made one."""
        window = self._window
        return self._done * 1000 + (len(window.stepped) + len(window.left_out) if window else 0)

    # Windows

    @property
    def in_full(self) -> bool:
        """Whether the step to come or under way is recorded in full; true before the first one."""
        return (self._window is None and self._done == 0) or self._done + 1 in self._recording.record_steps

    @property
    def optimizers(self) -> "list[tuple[int, object]]":
        """(number, optimizer) of all that stepped."""
        return sorted(self._numbers.values(), key=lambda found: found[0])

    def _current(self) -> Window:
        """The open window; a new one where the last one's step was made and no step is under way."""
        if self._window is None:
            self._window = Window(self._done + 1, self._done + 1 in self._recording.record_steps)
        return self._window

    def next_window(self) -> None:
        """A forward pass begins: what was stepped is over."""
        if self._window is not None and self._window.over and not self._open_steps:
            self._finish()

    def _file(self, window: Window) -> StepFile:
        if window.file is None:
            root = self.roots.root()
            count = 0 if root is None else len(list(root.parameters()))
            window.file = StepFile(self._folder, window.step, count, self._recording.sample_elements)
        return window.file

    def _finish(self) -> None:
        window = self._window
        window.let_go()
        if window.file is not None:
            window.file.close(self._recording.rank, self._recording.world_size)
        self._window = None
        self._done += 1

    def close(self) -> None:
        """Finish the last step's file; what was begun and never stepped is dropped."""
        if self._window is not None and self._window.over:
            self._finish()
        self.discard()

    def discard(self) -> None:
        """Let go of an unfinished window."""
        window, self._window = self._window, None
        if window is not None:
            window.let_go()
        if window is not None and window.file is not None:
            window.file.discard()

    def _compiled(self, module: "torch.nn.Module") -> bool:
        is_compiled = (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
        )
        if is_compiled:
            self._journal.unavailable("logits", "torch.compile: recorded are the rows and the optimizer only")
        return is_compiled


def _with_gradient(held: "list[tuple[str, torch.Tensor]]") -> "set[str]":
    return {name for name, parameter in held if parameter.grad is not None}


def _pairs(first: "list", second: "list") -> "list[tuple]":
    return [(entry, second[index]) for index, entry in enumerate(first)]
