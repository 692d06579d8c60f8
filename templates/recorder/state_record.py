"""Digests of the state around a training: optimizers and generators, in ``state-<when>.jsonl``."""

import hashlib
import random
import sys
from collections.abc import Iterator

import torch
from plumbline_recorder.optimizer_record import Naming, state_of
from plumbline_recorder.reading import digest, dtype_name, local, quiet


def state_lines(
    optimizers: "list[tuple[int, object]]", names: "dict[int, str]"
) -> "Iterator[dict[str, object]]":
    """A line a tensor or number of each optimizer's state, then one a generator. Reading draws no number."""
    naming = Naming(names)
    for number, optimizer in optimizers:
        for group in naming.groups(optimizer, number):
            for name, parameter in group:
                for key, value in state_of(optimizer, parameter):
                    yield {"kind": "optimizer", "name": "%d.%s.%s" % (number, name, key), **_facts(value)}
    for name, value in generators():
        yield {"kind": "rng", "name": name, "sha256": value}


def _facts(value: object) -> "dict[str, object]":
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    with quiet():
        return {
            "sha256": digest(value),
            "dtype": dtype_name(value.dtype),
            "shape": list(local(value).shape),
        }


def generators() -> "Iterator[tuple[str, str]]":
    """(name, sha256 of the state) of the process's random number generators."""
    yield "python", hashlib.sha256(repr(random.getstate()).encode()).hexdigest()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        kind, keys, *rest = numpy.get_state(legacy=True)
        raw = repr((kind, rest)).encode() + keys.tobytes()
        yield "numpy", hashlib.sha256(raw).hexdigest()
    with quiet():
        yield "torch.cpu", digest(torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            for index in range(torch.cuda.device_count()):
                yield "torch.cuda.%d" % index, digest(torch.cuda.get_rng_state(index))
