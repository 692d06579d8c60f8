"""Comparing every value of an export with its original, against reading both and ``numpy.array_equal``."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from checks.references.checkpoints.expectation import expectation
from checks.references.checkpoints.folder import open_checkpoint
from checks.references.checkpoints.naming import compare_names
from checks.references.checkpoints.values import compare_all
from tests.benchmarks import Pair, benchmark

_TENSORS, _SHAPE = 8, (2048, 4096)


@benchmark("export compare", target=2.0, peer="safetensors load_file and numpy.array_equal", rounds=5)
@contextmanager
def export_compare() -> Iterator[Pair]:
    """256 MiB of float32 on each side (the peer's fastest dtype), from the page cache."""
    with tempfile.TemporaryDirectory() as home:
        folders = [Path(home, side) for side in ("original", "export")]
        random = np.random.default_rng(0)
        tensors = {f"w{i}": random.standard_normal(_SHAPE, dtype=np.float32) for i in range(_TENSORS)}
        for folder in folders:
            folder.mkdir()
            save_file(tensors, folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        del tensors
        yield Pair(lambda: _ours(*folders), lambda: _peer(*folders))


def _ours(original: Path, export: Path) -> None:
    left, right = open_checkpoint(original), open_checkpoint(export)
    naming = compare_names(expectation(left, (), None, None), left, right)
    result = compare_all(naming.pairs, {}, lambda _bytes, _name: None)
    if result.mismatches or result.judged != _TENSORS:
        raise RuntimeError(f"{len(result.mismatches)} mismatches in {result.judged} tensors")


def _peer(original: Path, export: Path) -> None:
    left, right = (load_file(folder / "model.safetensors") for folder in (original, export))
    if not all(np.array_equal(left[name], right[name]) for name in left):
        raise RuntimeError("the peer found a difference")
