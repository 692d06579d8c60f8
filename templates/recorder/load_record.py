"""A load: memory filled before it, so that what it leaves out shows, and every tensor that it left.

Floats are filled with NaN. Whole numbers and packed formats have no such value: their bytes are filled with
one pattern in the first load and with its complement in the second: what differs between them was not loaded.
What the load itself makes comes from memory that torch fills as it hands it out (`EmptyMemory`).
"""

import json
import weakref

import torch
from plumbline_recorder.empty_memory import EmptyMemory
from plumbline_recorder.journal import Journal
from plumbline_recorder.model_record import model_lines
from plumbline_recorder.parameter_names import plain_name, tensors_of, unwrapped
from plumbline_recorder.reading import is_number, local, quiet
from plumbline_recorder.recording import Recording
from plumbline_recorder.tensor_file import TensorFile

PATTERNS = {1: 0xA5, 2: 0x5A}
FILE_BYTES = 1 << 31
"""A file of values is closed after this many."""


class LoadRecord:
    """One load of a release into a model."""

    def __init__(self, recording: Recording, journal: Journal, number: int) -> None:
        """``number``: 1 or 2, which decides the pattern."""
        self._recording, self._journal, self._number = recording, journal, number
        self._touched: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()
        self._filled: "set[str]" = set()
        self._empty = EmptyMemory()
        self._empty.start()

    def end(self) -> bool:
        """Nothing is filled any more. Returns whether torch filled all memory that it handed out."""
        return self._empty.stop()

    def fill_module(self, module: "torch.nn.Module", point: str) -> None:
        """Fill every parameter and persistent buffer that has memory.

        Before a load a module is filled once: a second call would wipe what the first one loaded.
        """
        inner = unwrapped(module)
        if point == "before-load":
            fresh = [part for part in inner.modules() if part not in self._touched]
            self._touched.update(fresh)
            mine = {id(value) for part in fresh for value in _own(part)}
        else:
            mine = {id(value) for part in inner.modules() for value in _own(part)}
        held = [each for each in tensors_of(inner) if each.persistent and id(each.tensor) in mine]
        self.fill([(each.name, each.tensor) for each in held], point)

    def fill(self, tensors: "list[tuple[str, torch.Tensor]]", point: str) -> None:
        """Fill tensors; a tied tensor is named by all its names."""
        names: "dict[str, list[str]]" = {}
        for name, value in tensors:
            with quiet():
                mine = local(value)
                if mine.device.type == "meta" or mine.numel() == 0:
                    continue
                self._write(mine)
                names.setdefault(self._pattern(mine), []).append(plain_name(name))
        for pattern, filled in names.items():
            self._note(point, pattern, filled)

    def _note(self, point: str, pattern: str, names: "list[str]") -> None:
        line = {"pass": self._number, "point": point, "pattern": pattern, "names": names}
        self._filled.update(names)
        self._journal.write("fills", line)

    def _pattern(self, tensor: "torch.Tensor") -> str:
        return "nan" if _has_nan(tensor) else "bytes %02x" % PATTERNS[self._number]

    def _write(self, tensor: "torch.Tensor") -> None:
        if _has_nan(tensor):
            tensor.fill_(float("nan"))
        elif tensor.dtype == torch.bool:
            tensor.fill_(self._number == 1)
        else:
            # A view of bytes needs a last dimension that is contiguous; the rest is copied into place.
            pattern = torch.full_like(tensor, 0, memory_format=torch.contiguous_format)
            pattern.reshape(-1).view(torch.uint8).fill_(PATTERNS[self._number])
            tensor.copy_(pattern)

    def loaded(self, module: "torch.nn.Module", number: int) -> None:
        """Write ``model.jsonl`` lines and, within the job's limit, every tensor whole."""
        every, inner = self.end(), unwrapped(module)
        held = [each for each in tensors_of(inner) if not each.tensor.is_meta]
        tensors = [(each.name, each.tensor) for each in held]
        if every:
            self._note_made([(each.name, each.tensor) for each in held if each.persistent])
        with quiet():
            total = sum(local(value).numel() * local(value).element_size() for _, value in tensors)
        whole = total <= self._recording.record_bytes
        if not whole:
            why = "%d bytes of tensors, the job's record_bytes is %d" % (total, self._recording.record_bytes)
            self._journal.unavailable("whole tensors of load %d" % number, why)
        for line in model_lines(inner, "loaded-%d" % number, sampled=not whole):
            self._journal.write("model", line)
        if whole:
            self._write_values(tensors, number)

    def _note_made(self, tensors: "list[tuple[str, torch.Tensor]]") -> None:
        """Tensors that the load made: no memory was there before it that `fill` could have filled."""
        names: "dict[str, list[str]]" = {}
        for name, value in tensors:
            if name not in self._filled:
                pattern = "nan" if _has_nan(value) else "largest"
                names.setdefault(pattern, []).append(name)
        for pattern, made in names.items():
            self._note("handed-out", pattern, made)

    def _write_values(self, tensors: "list[tuple[str, torch.Tensor]]", number: int) -> None:
        file, count, size = None, 0, 0
        for name, value in tensors:
            if file is None:
                path = self._recording.records / ("loaded-%d-%03d.safetensors" % (number, count))
                file, size = TensorFile(path, 512 * len(tensors) + 4096), 0
                count += 1
            file.add(name, value)
            size += value.numel() * value.element_size()
            if size >= FILE_BYTES:
                self._close(file, number)
                file = None
        if file is not None:
            self._close(file, number)

    def _close(self, file: TensorFile, number: int) -> None:
        file.close(
            {
                "format": "plumbline-tensors",
                "version": "1",
                "rank": str(self._recording.rank),
                "world_size": str(self._recording.world_size),
                "when": "loaded-%d" % number,
                "placements": json.dumps({}),
            }
        )


def _own(module: "torch.nn.Module") -> "list[torch.Tensor]":
    """Parameters and buffers of a module without those of its parts."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _has_nan(tensor: "torch.Tensor") -> bool:
    return is_number(tensor) and "e8m0" not in str(tensor.dtype)
