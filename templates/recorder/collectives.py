"""A line a call of torch.distributed in ``collectives.jsonl``.

Seen is what Python calls there: not the reduction of DistributedDataParallel, which is C++, and not the
functional collectives of DTensor.
"""

import importlib

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.journal import Journal
from plumbline_recorder.patches import Patches
from plumbline_recorder.reading import dtype_name

NAMES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "send",
    "recv",
    "isend",
    "irecv",
)
LINES = 20000
"""Lines; further calls are counted only."""


class Collectives:
    """Listens while ``wanted()`` says so; counts always."""

    def __init__(self, health: Health, journal: Journal, wanted: object) -> None:
        """``wanted()``: whether the open step is recorded in full, or no step began."""
        self._health, self._journal, self._wanted = health, journal, wanted
        self._depth = self._lines = 0
        self.counts: "dict[str, int]" = {}

    def install(self, patches: Patches, compiling: object) -> None:
        """Listen to the functions of ``torch.distributed``; nothing where torch was built without it."""
        if not torch.distributed.is_available():
            return
        # It keeps a table of the functions, for torch.compile, that has to name the originals.
        importlib.import_module("torch.distributed._functional_collectives")
        source = importlib.import_module("torch.distributed.distributed_c10d")

        for name in NAMES:
            patches.replace(source, name, self._listener(name, compiling))

    def _listener(self, name: str, compiling: object) -> object:
        def make(original: object) -> object:
            def call(*args, **kwargs):
                if compiling() or self._depth or not self._health.active:
                    return original(*args, **kwargs)
                with self._health.guard("a collective"):
                    self._called(name, args, kwargs)
                self._depth += 1
                try:
                    return original(*args, **kwargs)
                finally:
                    self._depth -= 1

            return call

        return make

    def _called(self, name: str, args: tuple, kwargs: dict) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self._lines >= LINES or not self._wanted() or not torch.distributed.is_initialized():
            return
        self._lines += 1
        tensors = [value for value in _flat([*args, *kwargs.values()]) if isinstance(value, torch.Tensor)]
        groups = [
            value for value in [*args, *kwargs.values()] if isinstance(value, torch.distributed.ProcessGroup)
        ]
        line = {
            "op": name,
            "group_size": torch.distributed.get_world_size(groups[0] if groups else None),
            "dtype": dtype_name(tensors[0].dtype) if tensors else None,
            "elements": sum(value.numel() for value in tensors),
            "async": bool(kwargs.get("async_op", name in ("isend", "irecv"))),
        }
        self._journal.write("collectives", line)


def _flat(values: "list[object]") -> "list[object]":
    found: "list[object]" = []
    for value in values:
        found.extend(value if isinstance(value, (list, tuple)) else [value])
    return found
