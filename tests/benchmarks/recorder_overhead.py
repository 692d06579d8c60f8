"""A training with the recorder of metrics, against the same training without it, on steps of about 100 ms."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks import Pair, benchmark

CHILD = Path(__file__).parents[1] / "templates" / "training_jobs" / "benchmarked.py"


@benchmark("recorder, metrics only", target=1.02, peer="the same training without it", rounds=61)
@contextmanager
def overhead() -> Iterator[Pair]:
    """Two processes that wait for each other: an optimizer step of 12 layers on one thread each.

    Measured is their processor time, so that a busy machine changes nothing.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ours, peer = (stack.enter_context(training(Path(folder, how), how)) for how in ("on", "off"))
        yield Pair(ours, peer)
        steps = Path(folder, "on/records/steps.jsonl").read_text(encoding="utf-8").splitlines()
        if len(steps) < 3:
            raise RuntimeError(f"the recorder wrote {len(steps)} steps")


@contextmanager
def training(folder: Path, how: str) -> Iterator[Callable[[], object]]:
    """A process that makes a step whenever it is told to."""
    folder.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), str(folder), how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the training has no pipes")
        to, back = child.stdin, child.stdout

        def step() -> object:
            to.write("go\n")
            to.flush()
            return float(json.loads(back.readline())["processor_s"])

        yield step
        to.close()
