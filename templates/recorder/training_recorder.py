"""Records a training: the model, its optimizer steps and state, through hooks in torch alone.

Nothing here imports torch before `TrainingRecorder.install`, and nothing that fails here ends the training:
the recorder stops, says so in ``recorder-failed.json``, and every method then does nothing.
"""

import importlib
import sys

from plumbline_recorder.health import Health
from plumbline_recorder.journal import Journal
from plumbline_recorder.recording import Recording


class TrainingRecorder:
    """One rank's recorder. It issues no collective and changes no result and no random number."""

    def __init__(self, procedure: object) -> None:
        """``procedure`` gives ``records`` (folder), ``job`` (its settings), ``rank`` and ``world_size``."""
        settings = procedure.job["settings"]
        self.recording = Recording(procedure.records, settings, procedure.rank, procedure.world_size)
        self.health = Health(procedure.records, procedure.rank, procedure.world_size)
        self.journal = Journal(procedure.records)
        self._parts: "object | None" = None

    def install(self) -> None:
        """Start recording; call it before the framework is imported."""
        with self.health.guard("the start of the recorder"):
            self.health.begin()
            self.health.on_failure(self.journal.close)
            self._parts = _import_parts().TrainingParts(self.recording, self.health, self.journal)
            self._parts.install()

    def model(self, module: object, when: str) -> None:
        """Record every parameter and buffer of a module: ``when`` is meta, built, start or end."""
        self._do("the model (%s)" % when, lambda parts: parts.model(module, when))

    def built(self, module: object) -> None:
        """Record the model that training would start with: tensors, configuration, modules and adapters."""
        self._do("the built model", lambda parts: parts.built(module))

    def optimizer_made(self, optimizer: object) -> None:
        """Follow an optimizer that was made before `install`."""
        self._do("an optimizer", lambda parts: parts.optimizer_made(optimizer))

    def batch(self, inputs: "dict[str, object]") -> None:
        """A batch with ids and labels whose forward pass comes next; for models that are given no labels."""
        self._do("a batch", lambda parts: parts.batch(inputs))

    def begin_load(self, number: int) -> None:
        """A load begins (1 or 2): fill what it has to overwrite, each time with another pattern."""
        self._do("the start of a load", lambda parts: parts.begin_load(number))

    def fill(self, tensors: "list[tuple[str, object]]", point: str) -> None:
        """Fill named tensors at a place only a binding knows; ``point`` is materialised or before-load."""
        self._do("the fill before a load", lambda parts: parts.fill(tensors, point))

    def loaded(self, module: object, number: int) -> None:
        """Record the loaded model: after ties, before any forward pass."""
        self._do("the loaded model", lambda parts: parts.loaded(module, number))

    def logged(self, step: int, values: "dict[str, object]") -> None:
        """Record what the framework itself logged for a step."""
        event = {"event": "logged", "step": int(step), "values": dict(values)}
        self._do("what was logged", lambda parts: self.journal.write("events", event))

    def close(self) -> None:
        """Write the end state, finish every file and put torch back as it was."""
        self._do("the end state", lambda parts: parts.finish())
        with self.health.guard("the end of the recorder"):
            if self._parts is not None:
                self._parts.remove()
            self.journal.close()
            self.health.complete({} if self._parts is None else self._parts.facts())

    def _do(self, what: str, action: object) -> None:
        if self.health.active and self._parts is not None:
            with self.health.guard(what):
                action(self._parts)


def _import_parts() -> object:
    """Import what needs torch; nothing is written beside the hooks, which stay as they were approved."""
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return importlib.import_module("plumbline_recorder.training_parts")
    finally:
        sys.dont_write_bytecode = before
