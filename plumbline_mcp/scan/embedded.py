"""Scans the embedded release as a user would scan theirs: environment, image, rows, export, three verdicts.

A scan plays a fault entry; the clean one is an entry that plants nothing. The checks see run folders and
files, never the entry.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from pydantic import JsonValue

from checks.check import Progress, silent
from checks.errors import BadInput
from checks.records.runs import RunFolder
from checks.references.packs import load_pack
from checks.verdict import Verdict
from plumbline_mcp import workers
from plumbline_mcp.engines.environments import Environment, build_in_worker
from plumbline_mcp.engines.foreground import run
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.scan.fault_entries import CheckName, Corpus, FaultEntry
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.temporaries import sweep_temporaries, temporary_beside
from plumbline_mcp.workspace import Workspace

T = TypeVar("T")

FINISHING = "finishing"

_JOB_LIMIT_S = 600.0
_EDIT_LIMIT_S = 120.0


@dataclass(frozen=True)
class Made:
    """The embedded release and workload on disk."""

    model: Path
    workload: Path


@dataclass
class Shared:
    """What scans of one session share: each is made once, by the first scan that needs it."""

    _made: dict[str, Any] = field(default_factory=dict)
    _locks: dict[str, anyio.Lock] = field(default_factory=dict)

    async def once(self, what: str, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of that name, made now when nobody has."""
        async with self._locks.setdefault(what, anyio.Lock()):
            if what not in self._made:
                self._made[what] = await make()
            made: T = self._made[what]
            return made


class Steps:
    """Progress over a scan: whole steps, and the part of the present one that its own progress tells."""

    def __init__(self, total: int, report: Progress) -> None:
        self._total, self._report, self._done = total, report, 0

    def begin(self, step: str) -> Progress:
        """Start a step; its progress may be told to what is returned."""
        started, self._done = self._done, self._done + 1
        self._report(started, self._total, step)
        furthest = 0.0  # a job that counts anew for each epoch must not walk backwards

        def told(done: float, total: float | None, message: str) -> None:
            nonlocal furthest
            furthest = max(furthest, min(done / total, 1.0) if total else 0.0)
            if total and done >= total:
                message = FINISHING  # what it still does after the last thing it counts, it does not tell
            self._report(started + furthest, self._total, f"{step}: {message}" if message else step)

        return told


async def scan_embedded(
    workspace: Workspace,
    entry: FaultEntry,
    corpus: Corpus | None = None,
    *,
    progress: Progress | None = None,
    shared: Shared | None = None,
) -> list[Verdict]:
    """Play one entry and return its stored verdicts, in the order of the checks.

    ``corpus`` holds the entry's plants; it may be absent for an entry that plants nothing. Raises
    `NotEvaluated` when the environment cannot be built and `BadInput` when a plant does not do its work.
    """
    return await _Scan(workspace, entry, corpus, progress or silent, shared or Shared()).run()


class _Scan:
    """One scan; each method is a step."""

    def __init__(
        self, workspace: Workspace, entry: FaultEntry, corpus: Corpus | None, report: Progress, shared: Shared
    ) -> None:
        self._workspace, self._entry, self._corpus, self._shared = workspace, entry, corpus, shared
        self._framework = entry.framework
        self._steps = Steps(2 + sum(1 if check == "image" else 2 for check in entry.checks), report)

    async def run(self) -> list[Verdict]:
        made = await self._release()
        environment = await self._environment()
        verdicts = []
        for check in self._entry.checks:
            inputs = await getattr(self, f"_{check}_inputs")(made, environment)
            verdicts.append(await self._check(check, inputs))
        return verdicts

    async def _release(self) -> Made:
        report = self._steps.begin("building the embedded release")
        spec = {"spec": self._entry.release.model_dump(), "rows": self._entry.rows}
        folder = self._workspace.home / "example" / _key(spec)
        make = partial(_build_release, folder, spec, report)
        return await self._shared.once(f"release {folder.name}", make)

    async def _environment(self) -> Environment:
        report = self._steps.begin("preparing the framework's environment")
        plant, pack = self._entry.plant, load_pack(self._framework).about.environment
        wanted = plant.requirements or pack.requirements
        alone = plant.without_dependencies or pack.without_dependencies
        environment = await build_in_worker(wanted, without_dependencies=alone, progress=report)
        return await self._edited_environment(environment) if plant.edit_environment else environment

    async def _edited_environment(self, environment: Environment) -> Environment:
        """A copy with a planted change: the cached environment serves others and stays as it is."""
        copy = self._fresh("environment")
        make = partial(shutil.copytree, environment.path, copy, symlinks=True)
        await anyio.to_thread.run_sync(make)
        await self._edit(self._entry.plant.edit_environment, copy)
        return Environment(copy / "bin" / "python", environment.digest, copy)

    async def _image_inputs(self, made: Made, environment: Environment) -> dict[str, JsonValue]:
        return {"python": str(environment.python), "framework": self._framework}

    async def _data_inputs(self, made: Made, environment: Environment) -> dict[str, JsonValue]:
        if self._entry.plant.rows_job:
            return await self._rows_job_inputs(self._entry.plant.rows_job, made, environment)
        run = await self._procedure(
            "rows", environment, {"model": str(made.model), "workload": str(made.workload)}
        )
        return {
            "model": str(made.model),
            "workload": str(made.workload),
            "rows": str(run.path),
            "framework": self._framework,
        }

    async def _rows_job_inputs(self, job: str, made: Made, environment: Environment) -> dict[str, JsonValue]:
        """Run a job script of the corpus that dumps its rows as JSON lines."""
        self._steps.begin("running the framework's rows job")
        rows = self._fresh("rows").with_suffix(".jsonl")
        paths = [str(made.model), str(made.workload), str(rows)]
        script = self._planted().job_file(job)
        await self._script(environment.python, script, _JOB_LIMIT_S, [*paths, *self._entry.plant.arguments])
        return {"model": paths[0], "workload": paths[1], "rows": paths[2]}

    async def _export_inputs(self, made: Made, environment: Environment) -> dict[str, JsonValue]:
        if self._entry.plant.job:
            return await self._job_inputs(self._entry.plant.job, made, environment)
        run = await self._procedure("export", environment, {"model": str(made.model)})
        export = run.path
        if self._entry.plant.edit_export:
            export = self._fresh("export")
            await anyio.to_thread.run_sync(partial(shutil.copytree, run.output, export))
            await self._edit(self._entry.plant.edit_export, export)
        return {"original": str(made.model), "export": str(export), "framework": self._framework}

    async def _job_inputs(self, job: str, made: Made, environment: Environment) -> dict[str, JsonValue]:
        """Run a job script of the corpus: it writes ``export`` and, where it trains one, ``adapter``."""
        self._steps.begin("running the framework's export job")
        out = self._fresh("job")
        out.mkdir(parents=True)
        script = self._planted().job_file(job)
        await self._script(environment.python, script, _JOB_LIMIT_S, [str(made.model), str(out)])
        inputs: dict[str, JsonValue] = {"original": str(made.model), "export": str(out / "export")}
        return inputs | ({"adapter": str(out / "adapter")} if (out / "adapter").is_dir() else {})

    async def _procedure(self, name: str, environment: Environment, inputs: dict[str, str]) -> RunFolder:
        report = self._steps.begin(f"running the framework's {name} procedure")
        plant = self._entry.plant
        hooks = (self._planted().plant_file(plant.hook),) if plant.hook else ()
        launch = Launch(
            framework=self._framework,
            procedure=name,
            interpreter=environment.python,
            inputs=inputs,
            settings=plant.settings.get(name, {}),
            plants=hooks,
            time_limit_s=_JOB_LIMIT_S,
            target={"model": "embedded release"},
        )
        what = json.dumps([str(environment.path), launch.model_dump(mode="json")])
        return await self._shared.once(what, partial(run, self._workspace, launch, report))

    async def _check(self, name: CheckName, inputs: dict[str, JsonValue]) -> Verdict:
        report = self._steps.begin(f"check {name}")
        return await run_check(
            self._workspace, name, inputs | self._entry.inputs.get(name, {}), progress=report
        )

    def _fresh(self, what: str) -> Path:
        """A path of this entry where nothing lies."""
        path = self._workspace.home / "example" / f"{self._entry.id}-{what}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def _planted(self) -> Corpus:
        if self._corpus is None:
            raise BadInput(f"entry {self._entry.id} plants a fault and no corpus holds it", "name its corpus")
        return self._corpus

    async def _edit(self, script: str | None, target: Path) -> None:
        """Run an edit script on files; one that fails or changes nothing planted nothing."""
        if script is None:
            return
        before, file = _contents(target), self._planted().plant_file(script)
        arguments = [str(target), *self._entry.plant.arguments]
        await self._script(Path(sys.executable), file, _EDIT_LIMIT_S, arguments)
        if _contents(target) == before:
            raise BadInput(f"plant {script} of entry {self._entry.id} changed nothing")

    async def _script(self, python: Path, script: Path, limit_s: float, arguments: list[str]) -> None:
        """Run a script of the corpus. Raises `BadInput` with the last line it said when it fails."""
        command, environment = (
            [str(python), "-I", str(script), *arguments],
            workers.clean_environment(os.environ),
        )
        with anyio.fail_after(limit_s):
            done = await anyio.run_process(command, check=False, env=environment, start_new_session=True)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise BadInput(f"{script.name} of entry {self._entry.id} failed: {''.join(said)[:300]}")


async def _build_release(folder: Path, spec: dict[str, Any], report: Progress) -> Made:
    """Build beside the place and rename: a stopped build leaves nothing half-written or half-removed."""
    sweep_temporaries(folder.parent)
    temporary, old = temporary_beside(folder), temporary_beside(folder)
    made = Made(folder / "release", folder / "workload.jsonl")
    payload = {"model": str(temporary / "release"), "workload": str(temporary / "workload.jsonl"), **spec}
    try:
        await workers.call(
            "plumbline_mcp.scan.example_release:build", payload, progress=report, timeout_s=_JOB_LIMIT_S
        )
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
        temporary.rename(folder)
    finally:
        for path in (temporary, old):
            shutil.rmtree(path, ignore_errors=True)
    return made


def _key(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every plain file: what an edit has to change."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
