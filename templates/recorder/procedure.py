"""What every procedure does first: read the job, import the plants, then the pack's binding."""

import importlib
import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from plumbline_recorder.progress import Progress
from plumbline_recorder.recording import rank_of_process


class Procedure:
    """The job that this process runs."""

    def __init__(self, run: Path) -> None:
        """Read ``job.json`` of the run folder and import the job's plants, in their order.

        A plant changes the framework's code in memory before the binding imports any of it.
        """
        self.run = run
        self.job = json.loads((run / "job.json").read_text(encoding="utf-8"))
        self.rank, self.world_size = rank_of_process()
        self.records = run / "records" / ("rank-%05d" % self.rank)
        self.output = run / self.job["output"]
        self.progress = Progress(run / "logs" / "progress.jsonl")
        for plant in self.job["plants"]:
            load(run / plant, "plumbline_plant")

    def binding(self) -> ModuleType:
        """The pack's module for this procedure; its siblings are in the package ``plumbline_binding``."""
        folder = str(self.run / "hooks" / "binding")
        sys.modules["plumbline_binding"] = package = ModuleType("plumbline_binding")
        package.__path__ = [folder]
        sys.path_importer_cache[folder] = importlib.machinery.FileFinder(folder, (_Source, [".py"]))
        name = self.job.get("binding") or self.job["procedure"] + ".py"
        return importlib.import_module("plumbline_binding." + name[: -len(".py")])


class _Source(importlib.machinery.SourceFileLoader):
    def set_data(self, path: str, data: bytes, *, _mode: int = 0o666) -> None:
        """Write no byte code: the hooks of a run stay as they were approved."""


def load(path: Path, name: str) -> ModuleType:
    """Import the file at ``path`` without touching the import path."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError("cannot import %s" % path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
