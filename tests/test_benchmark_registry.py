"""The benchmark registry: interleaved rounds, medians, a ratio held against its target."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests import benchmarks
from tests.benchmarks import Benchmark, Pair, benchmark, measure


def _slow_and_quick(order: list[str]) -> Benchmark:
    @contextmanager
    def prepare() -> Iterator[Pair]:
        yield Pair(lambda: _work(order, "ours", 0.02), lambda: _work(order, "peer", 0.005))
        order.append("cleaned up")

    return Benchmark("slow", 1.5, "a quicker one", 3, prepare)


def _work(order: list[str], side: str, seconds: float) -> None:
    order.append(side)
    time.sleep(seconds)


def test_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    measure(_slow_and_quick(order))
    assert order == ["ours", "peer"] * 4 + ["cleaned up"]


def test_a_ratio_above_the_target_is_not_ok() -> None:
    result = measure(_slow_and_quick([]))
    assert result.ratio == result.ours_s / result.peer_s > 1.5
    assert not result.ok


def test_one_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "REGISTRY", {})
    prepare = _slow_and_quick([]).prepare
    assert benchmark("twice", target=1, peer="p")(prepare) is prepare
    with pytest.raises(ValueError, match="twice"):
        benchmark("twice", target=1, peer="p")(prepare)


def test_every_benchmark_that_the_issue_asks_for_is_registered() -> None:
    names = " ".join(benchmarks.discover())
    for wanted in ("server start", "data check", "export compare", "state digest"):
        assert wanted in names
