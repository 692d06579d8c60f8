"""Benchmarks as ratios: ours beside a peer doing the same work, interleaved in one run on one machine.

A benchmark is a function in a module of this package, decorated with `benchmark`. It is a context manager
that prepares both sides and yields them; the registry measures. ``make bench`` prints the table and writes
``bench.json``. No test asserts a time.
"""

import importlib
import pkgutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass


class Absent(Exception):
    """Raised by a benchmark whose input is not on this machine."""


@dataclass(frozen=True)
class Pair:
    """Two ways to do the same work, each measured whole, or by the seconds (a float) that it returns."""

    ours: Callable[[], object]
    peer: Callable[[], object]


@dataclass(frozen=True)
class Benchmark:
    """A registered benchmark. ``target`` is the largest allowed ratio of seconds, ours to the peer's."""

    name: str
    target: float
    peer: str
    rounds: int
    prepare: Callable[[], AbstractContextManager[Pair]]


@dataclass(frozen=True)
class Result:
    """Medians in seconds over the rounds."""

    name: str
    peer: str
    ours_s: float
    peer_s: float
    ratio: float
    target: float
    ok: bool
    rounds: int

    def as_json(self) -> dict[str, object]:
        """The line of ``bench.json``."""
        return asdict(self)


REGISTRY: dict[str, Benchmark] = {}


def benchmark(
    name: str, *, target: float, peer: str, rounds: int = 5
) -> Callable[[Callable[[], AbstractContextManager[Pair]]], Callable[[], AbstractContextManager[Pair]]]:
    """Register the decorated context manager under ``name``."""

    def register(
        prepare: Callable[[], AbstractContextManager[Pair]],
    ) -> Callable[[], AbstractContextManager[Pair]]:
        if name in REGISTRY:
            raise ValueError(f"there are two benchmarks {name!r}")
        REGISTRY[name] = Benchmark(name, target, peer, rounds, prepare)
        return prepare

    return register


def discover() -> dict[str, Benchmark]:
    """Import every module of this package and return what they registered, by name."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(REGISTRY.items()))


def measure(found: Benchmark) -> Result:
    """Run both sides in turn, after one round that is not counted."""
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    with found.prepare() as pair:
        for counted in range(found.rounds + 1):
            for side, taken in _round(pair):
                if counted:
                    seconds[side].append(taken)
    ours, peer = (statistics.median(seconds[side]) for side in ("ours", "peer"))
    ratio = ours / peer
    return Result(
        found.name, found.peer, ours, peer, ratio, found.target, ratio <= found.target, found.rounds
    )


def _round(pair: Pair) -> Iterator[tuple[str, float]]:
    for side, work in (("ours", pair.ours), ("peer", pair.peer)):
        started = time.perf_counter()
        own = work()
        yield side, own if isinstance(own, float) else time.perf_counter() - started
