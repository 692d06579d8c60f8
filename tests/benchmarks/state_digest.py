"""The digest of a tensor's state, against ``hashlib.sha256`` over the same bytes."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from checks.references.checkpoints.tensors import state_digest
from tests.benchmarks import Pair, benchmark


@benchmark("state digest", target=1 / 0.7, peer="hashlib.sha256", rounds=7)
@contextmanager
def digest() -> Iterator[Pair]:
    """64 MiB in memory."""
    data = np.random.default_rng(0).integers(0, 2**16, (4096, 8192), dtype=np.uint16)
    view = memoryview(data.data).cast("B")
    yield Pair(lambda: state_digest("BF16", data.shape, view), lambda: hashlib.sha256(view).hexdigest())
