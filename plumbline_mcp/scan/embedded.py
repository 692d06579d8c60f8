"""Scans the embedded release as a user would scan theirs; a fault entry says what is planted on the way.

The clean scan is an entry that plants nothing. The checks see run folders and files, never the entry.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from checks.check import Progress, silent
from checks.errors import BadInput
from checks.references.packs import load_pack
from plumbline_mcp import workers
from plumbline_mcp.engines.environments import Environment, build_in_worker
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry
from plumbline_mcp.scan.scanning import CheckInputs, Scan, Scanned, Shared, Subject
from plumbline_mcp.scan.steps import StepProgress, steps_for
from plumbline_mcp.temporaries import sweep_temporaries, temporary_beside
from plumbline_mcp.workspace import Workspace

_JOB_LIMIT_S = 600.0
_EDIT_LIMIT_S = 120.0


@dataclass(frozen=True)
class Made:
    """The embedded release and workload on disk."""

    model: Path
    workload: Path


async def scan_embedded(
    workspace: Workspace,
    entry: FaultEntry,
    corpus: Corpus | None = None,
    *,
    progress: Progress | None = None,
    shared: Shared | None = None,
) -> Scanned:
    """Play one entry; its verdicts are stored, in the order of the steps.

    ``corpus`` holds the entry's plants; it may be absent for an entry that plants nothing. Raises
    `BuildError` when the environment cannot be built and `BadInput` when a plant does not do its work.
    """
    return await _Play(workspace, entry, corpus, progress or silent, shared or Shared()).run()


class _Play:
    """One entry on its way into a scan."""

    def __init__(
        self, workspace: Workspace, entry: FaultEntry, corpus: Corpus | None, report: Progress, shared: Shared
    ) -> None:
        self._workspace, self._entry, self._corpus, self._shared = workspace, entry, corpus, shared
        self._scan_steps = steps_for(load_pack(entry.framework), entry.checks)
        self._steps = StepProgress(2 + sum(step.parts for step in self._scan_steps), report)

    async def run(self) -> Scanned:
        made = await self._release()
        environment = await self._environment()
        subject = await self._subject(made, environment)
        instead = self._instead(made, environment)
        scan = Scan(self._workspace, subject, self._scan_steps, self._steps, self._shared, instead)
        return await scan.run()

    async def _subject(self, made: Made, environment: Environment) -> Subject:
        """The planted target; its checks read the release as it was published."""
        entry, plant = self._entry, self._entry.plant
        arguments, read = {name: dict(given) for name, given in entry.inputs.items()}, made.model
        if plant.edit_release:
            read = await self._copied("release", made.model)
            await self._edit(plant.edit_release, read)
            for step, argument in (("data", "model"), ("load", "model"), ("export", "original")):
                arguments.setdefault(step, {}).setdefault(argument, str(made.model))
        return Subject(
            framework=entry.framework,
            python=environment.python,
            files={"model": read, "workload": made.workload},
            recipe=entry.recipe,
            settings=plant.settings,
            arguments=arguments,
            plants=(self._planted().plant_file(plant.hook),) if plant.hook else (),
            target={"model": "embedded release"},
            time_limit_s=entry.time_limit_s,
        )

    def _instead(
        self, made: Made, environment: Environment
    ) -> dict[str, Callable[[Scan], Awaitable[CheckInputs]]]:
        """What the entry puts in the place of a procedure."""
        plant = self._entry.plant
        instead: dict[str, Callable[[Scan], Awaitable[CheckInputs]]] = {}
        if plant.rows_job:
            instead["data"] = partial(self._rows_job, plant.rows_job, made, environment)
        if plant.job:
            instead["export"] = partial(self._export_job, plant.job, made, environment)
        elif plant.edit_export:
            instead["export"] = partial(self._edited_export, plant.edit_export, made)
        return instead

    async def _release(self) -> Made:
        report = self._steps.begin("building the embedded release")
        spec = {"spec": self._entry.release.model_dump(), "rows": self._entry.rows}
        name = f"{self._entry.release.family}-{self._entry.rows}-rows-{_key(spec)}"
        folder = self._workspace.home / "example" / name
        make = partial(_build_release, folder, spec, report)
        return await self._shared.once(f"release {folder.name}", make)

    async def _environment(self) -> Environment:
        report = self._steps.begin("preparing the framework's environment")
        plant, pack = self._entry.plant, load_pack(self._entry.framework).about.environment
        wanted = plant.requirements or pack.requirements
        alone = plant.without_dependencies or pack.without_dependencies
        environment = await build_in_worker(wanted, without_dependencies=alone, progress=report)
        if not plant.edit_environment:
            return environment
        copy = await self._copied("environment", environment.path)  # the cached one serves others
        await self._edit(plant.edit_environment, copy)
        return Environment(copy / "bin" / "python", environment.digest, copy)

    async def _rows_job(self, job: str, made: Made, environment: Environment, scan: Scan) -> CheckInputs:
        """Run a job script of the corpus that dumps its rows as JSON lines."""
        self._steps.begin("running the framework's rows job")
        rows = self._fresh("rows").with_suffix(".jsonl")
        paths = [str(made.model), str(made.workload), str(rows)]
        script = self._planted().job_file(job)
        await self._script(environment.python, script, _JOB_LIMIT_S, [*paths, *self._entry.plant.arguments])
        return {"model": paths[0], "workload": paths[1], "rows": paths[2]}

    async def _export_job(self, job: str, made: Made, environment: Environment, scan: Scan) -> CheckInputs:
        """Run a job script of the corpus: it writes ``export`` and, where it trains one, ``adapter``."""
        self._steps.begin("running the framework's export job")
        out = self._fresh("job")
        out.mkdir(parents=True)
        script = self._planted().job_file(job)
        await self._script(environment.python, script, _JOB_LIMIT_S, [str(made.model), str(out)])
        inputs: CheckInputs = {"original": str(made.model), "export": str(out / "export")}
        return inputs | ({"adapter": str(out / "adapter")} if (out / "adapter").is_dir() else {})

    async def _edited_export(self, script: str, made: Made, scan: Scan) -> CheckInputs:
        """The procedure's export, copied and edited."""
        done = await scan.job("export")
        export = await self._copied("export", done.output)
        await self._edit(script, export)
        return {"original": str(made.model), "export": str(export), "framework": self._entry.framework}

    async def _copied(self, what: str, source: Path) -> Path:
        copy = self._fresh(what)
        await anyio.to_thread.run_sync(partial(shutil.copytree, source, copy, symlinks=True))
        return copy

    def _fresh(self, what: str) -> Path:
        """A path of this entry where nothing lies."""
        path = self._workspace.home / "example" / f"{self._entry.id}-{what}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def _planted(self) -> Corpus:
        if self._corpus is None:
            raise BadInput(f"entry {self._entry.id} plants a fault and no corpus holds it", "name its corpus")
        return self._corpus

    async def _edit(self, script: str, target: Path) -> None:
        """Run an edit script on files; one that fails or changes nothing planted nothing."""
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
