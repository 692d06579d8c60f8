"""Runs procedures of a built-in pack in its own environment; equal launches run once."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from safetensors.numpy import load_file

from checks.records.runs import RunFolder
from checks.references.packs import load_pack
from plumbline_mcp.engines.environments import Environment, build
from plumbline_mcp.engines.foreground import run
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.engines.procedures import load_procedure
from plumbline_mcp.scan.example_release import write_release
from plumbline_mcp.scan.example_spec import ReleaseSpec
from plumbline_mcp.scan.example_workload import write_workload
from plumbline_mcp.workspace import Workspace

ROWS = 40


def pack_environment(framework: str, pins: Iterable[str] = ()) -> Environment:
    """The pack's pinned environment, or one of other pins."""
    return build(tuple(pins) or load_pack(framework).about.environment.requirements)


class Jobs:
    """Jobs of one pack on an embedded release."""

    def __init__(
        self, framework: str, folder: Path, environment: Environment, spec: ReleaseSpec | None = None
    ) -> None:
        self.framework, self.environment = framework, environment
        self.model, self.workload = folder / "release", folder / "workload.jsonl"
        self.workspace = Workspace.open(folder / "home")
        write_release(self.model, spec)
        write_workload(self.workload, ROWS)
        self._done: dict[str, RunFolder] = {}

    def run(self, procedure: str, workload: Path | None = None, **settings: Any) -> RunFolder:
        """The run folder of a job whose every rank ended by itself."""
        folder = self.ended(procedure, workload, **settings)
        assert all(ended.clean for ended in folder.exits()), self.said(folder)
        return folder

    def ended(
        self,
        procedure: str,
        workload: Path | None = None,
        plants: tuple[Path, ...] = (),
        template: Path | None = None,
        **settings: Any,
    ) -> RunFolder:
        """The run folder of a job, however it ended; what is named here is given, though it is optional."""
        usual = {"model": self.model, "workload": self.workload}
        named = {"workload": workload, "template": template}
        given = {name: path for name, path in named.items() if path is not None}
        launch = Launch(
            framework=self.framework,
            procedure=procedure,
            interpreter=self.environment.python,
            inputs={name: usual[name] for name in load_procedure(procedure).inputs} | given,
            settings=settings,
            plants=plants,
        )
        key = launch.model_dump_json()
        if key not in self._done:
            self._done[key] = anyio.run(run, self.workspace, launch)
        return self._done[key]

    def said(self, folder: RunFolder) -> str:
        """The end of what each rank wrote to standard error."""
        return "\n".join(path.read_text()[-2000:] for path in sorted((folder.path / "logs").glob("*.err")))

    def conversations(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.workload.read_text().splitlines()]


def lines(folder: RunFolder, name: str, rank: int = 0) -> list[dict[str, Any]]:
    """The lines of a rank's record of that name."""
    path = folder.path / f"records/rank-{rank:05d}/{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def logged(folder: RunFolder, key: str, rank: int = 0) -> list[float]:
    """What the framework logged under a name, step by step."""
    events = (line for line in lines(folder, "events", rank) if line["event"] == "logged")
    return [event["values"][key] for event in events if key in event["values"]]


def sequences(folder: RunFolder, epoch: int) -> list[dict[str, Any]]:
    """The recorded sequences of an epoch, padding included."""
    tensors = load_file(folder.path / f"records/rank-00000/rows-{epoch}-000.safetensors")
    names = [name for name in ("input_ids", "labels", "attention_mask", "position_ids") if name in tensors]
    ends = tensors["document_offsets"].tolist()
    found = []
    for number in range(len(tensors["batches"])):
        start, stop = tensors["offsets"][number : number + 2].tolist()
        part = slice(start, stop)
        first = ends.index(start)
        last = ends.index(stop)
        found.append(
            {
                **{name: tensors[name][part].astype(int).tolist() for name in names},
                "row": tensors["row_ids"][first:last].tolist(),
                "batch": [int(tensors["batches"][number])],
                "ends": [end - start for end in ends[first + 1 : last + 1]],
            }
        )
    return found
