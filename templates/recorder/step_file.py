"""The tensors of one fully recorded step, ``step-<number>.safetensors``."""

import json
from pathlib import Path

import torch
from plumbline_recorder.micro_batches import MicroBatch
from plumbline_recorder.optimizer_record import state_of
from plumbline_recorder.placements import placement_of
from plumbline_recorder.reading import square_sum
from plumbline_recorder.tensor_file import TensorFile

HEADER_BYTES_PER_PARAMETER = 4096


class StepFile:
    """Collects one step's tensors of one rank."""

    def __init__(self, folder: Path, step: int, parameters: int, sample_elements: int) -> None:
        """``parameters``: how many are expected, for the room of the header."""
        path = folder / ("step-%06d.safetensors" % step)
        self._file = TensorFile(path, (1 << 16) + HEADER_BYTES_PER_PARAMETER * parameters)
        self._limit, self._step = sample_elements, step
        self._placements: "dict[str, object]" = {}
        self.labels = "aligned"
        self.transposed: "list[str]" = []

    def micro_batch(self, index: int, batch: MicroBatch, values: "dict[str, torch.Tensor]") -> None:
        """The inputs, labels and per-token values of a micro-batch, whole."""
        prefix = "micro.%d." % index
        for name, value in batch.inputs.items():
            self._file.add(prefix + ("input_ids" if value is batch.ids else name), value)
        if batch.labels is not None and prefix + "labels" not in self._file:
            self._file.add(prefix + "labels", batch.labels)
        if batch.shifted:
            self.labels = "shifted"
        for name, value in values.items():
            self._file.add(prefix + name, value)

    def witness(self, name: str, tensor: "torch.Tensor") -> None:
        """An input or output gradient of a witness module, whole."""
        self._file.add(name, tensor)

    def gradients(
        self, kind: str, held: "list[tuple[str, torch.Tensor]]", scale: "float | None" = None
    ) -> "dict[str, float]":
        """Write ``grad.<kind>.<name>`` of every parameter that has one; returns the local squares' sums.

        ``scale``: what the optimizer itself divides gradients by, before anything else.
        """
        squares = {}
        for name, parameter in held:
            if parameter.grad is None or "grad.%s.%s" % (kind, name) in self._file:
                continue
            gradient = parameter.grad if scale is None else parameter.grad / scale
            self._file.add("grad.%s.%s" % (kind, name), gradient, self._limit)
            squares[name] = square_sum(gradient)
        return squares

    def parameters(self, when: str, optimizer: object, held: "list[tuple[str, torch.Tensor]]") -> None:
        """Write ``<when>.<name>`` and ``state.<when>.<name>.<key>`` of parameters that are not there yet."""
        for name, parameter in held:
            if "%s.%s" % (when, name) in self._file:
                continue
            placement = placement_of(parameter)
            if placement is not None:
                self._placements[name] = placement
            self._file.add("%s.%s" % (when, name), parameter, self._limit)
            for key, value in state_of(optimizer, parameter):
                place = "state.%s.%s.%s" % (when, name, key)
                if isinstance(value, torch.Tensor):
                    self._file.add(place, value, self._limit)
                else:
                    self._file.add_number(place, float(value))

    def close(self, rank: int, world_size: int) -> None:
        """Finish the file."""
        self._file.close(
            {
                "format": "plumbline-step",
                "version": "1",
                "rank": str(rank),
                "world_size": str(world_size),
                "step": str(self._step),
                "labels": self.labels,
                "transposed": json.dumps(self.transposed),
                "placements": json.dumps(self._placements),
            }
        )

    def discard(self) -> None:
        """Remove what was written."""
        self._file.discard()
