"""The parts of the recorder that need torch, put together."""

import torch
from plumbline_recorder.build_record import built_lines
from plumbline_recorder.collectives import Collectives
from plumbline_recorder.health import Health
from plumbline_recorder.journal import Journal
from plumbline_recorder.load_record import LoadRecord
from plumbline_recorder.model_record import model_lines
from plumbline_recorder.recording import Recording
from plumbline_recorder.state_record import state_lines
from plumbline_recorder.step_record import StepRecord
from plumbline_recorder.training_hooks import TrainingHooks


class TrainingParts:
    """Model, steps and state of one rank."""

    def __init__(self, recording: Recording, health: Health, journal: Journal) -> None:
        """Nothing listens yet."""
        self._recording, self._journal = recording, journal
        self._load: "LoadRecord | None" = None
        self._steps = StepRecord(recording, health, journal)
        self._collectives = Collectives(health, journal, lambda: self._steps.in_full)
        self._hooks = TrainingHooks(health, self._steps, self._collectives, self._before_training)

    def install(self) -> None:
        """Start listening."""
        self._hooks.install()

    def model(self, module: "torch.nn.Module", when: str) -> None:
        """Write a line a tensor into ``model.jsonl``."""
        if when != "meta":
            self._hooks.roots.add(module)
        for line in model_lines(module, when, sampled=False):
            self._journal.write("model", line)

    def built(self, module: "torch.nn.Module") -> None:
        """Record the model that training would start with; nothing is trained, so no call is watched."""
        for line in model_lines(module, "built", sampled=False, buffers=True):
            self._journal.write("model", line)
        for line in built_lines(module):
            self._journal.write("built", line)

    def optimizer_made(self, optimizer: object) -> None:
        """Follow an optimizer that was made before the hooks."""
        self._hooks.meet(optimizer)

    def batch(self, inputs: "dict[str, object]") -> None:
        """Remember a batch for its labels."""
        self._steps.loader.saw(inputs)

    def begin_load(self, number: int) -> None:
        """A load begins: memory that it has to overwrite is filled from now on."""
        self._end_load()
        self._load = LoadRecord(self._recording, self._journal, number)
        self._hooks.fill_with(self._load)

    def fill(self, tensors: "list[tuple[str, torch.Tensor]]", point: str) -> None:
        """Fill tensors that the load has to overwrite; for bindings that know a place of their own."""
        self._load.fill(tensors, point)

    def loaded(self, module: "torch.nn.Module", number: int) -> None:
        """Record what the load left."""
        self._hooks.fill_with(None)
        self._load.loaded(module, number)

    def _before_training(self, root: "torch.nn.Module") -> None:
        self.model(root, "start")
        self._state("start")

    def _state(self, when: str) -> None:
        optimizers = self._steps.optimizers or list(enumerate(self._hooks.optimizers))
        for line in state_lines(optimizers, self._hooks.roots.names()):
            self._journal.write("state-" + when, line)

    def finish(self) -> None:
        """Write the end state and the last step's file."""
        root = self._hooks.roots.root()
        self._steps.close()
        if root is not None:
            self.model(root, "end")
            self._state("end")

    def remove(self) -> None:
        """Stop listening."""
        self._end_load()
        self._hooks.remove()

    def _end_load(self) -> None:
        if self._load is not None:
            self._load.end()

    def facts(self) -> "dict[str, object]":
        """What ``recorder.json`` says beside the state."""
        return {
            "torch": str(torch.__version__),
            "record_steps": sorted(self._recording.record_steps),
            "collectives": self._collectives.counts,
        }
