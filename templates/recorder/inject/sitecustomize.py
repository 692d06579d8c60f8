"""Puts the recorder into a framework that is launched by its own command.

With this folder on ``PYTHONPATH`` and ``PLUMBLINE_JOB`` naming the run's ``job.json``, every Python that the
command starts runs this file first. The recorder begins with the first optimizer that a process makes, so
launchers and data loader workers record nothing. An isolated Python (``-I``) ignores ``PYTHONPATH``.
"""

import atexit
import functools
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

HERE = Path(__file__).absolute().parent
WATCHED = "torch.optim.optimizer"


class Watcher:
    """Finds torch's optimizer module as Python does, and has it patched once it ran."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """The spec of that one module; None for any other."""
        if name != WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                wait_for_optimizer(module.Optimizer)

            spec.loader.exec_module = exec_module
        return spec


def wait_for_optimizer(kind: type) -> None:
    """Start the recorder when the first optimizer was made."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(optimizer: object, *args: object, **kwargs: object) -> None:
        original(optimizer, *args, **kwargs)
        if kind.__init__ is __init__:
            kind.__init__ = original
            start(optimizer)

    kind.__init__ = __init__


def start(optimizer: object) -> None:
    """Install the recorder into this process; a recorder that cannot start leaves a mark, not an error."""
    sys.path.append(str(HERE.parent.parent))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        from plumbline_recorder.recording import rank_of_process
        from plumbline_recorder.training_recorder import TrainingRecorder
    finally:
        sys.dont_write_bytecode = before
    job = Path(os.environ["PLUMBLINE_JOB"])
    rank, world_size = rank_of_process()
    records = job.parent / "records" / ("rank-%05d" % rank)
    settings = json.loads(job.read_text(encoding="utf-8"))
    procedure = types.SimpleNamespace(records=records, job=settings, rank=rank, world_size=world_size)
    recorder = TrainingRecorder(procedure)
    recorder.install()
    recorder.optimizer_made(optimizer)
    atexit.register(recorder.close)


def run_hidden() -> None:
    """Run the sitecustomize of the environment, which this one hides."""
    others = [entry for entry in sys.path if entry and Path(entry).absolute() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


run_hidden()
if os.environ.get("PLUMBLINE_JOB"):
    sys.meta_path.insert(0, Watcher())
