"""Scans the embedded release as a user would scan theirs; a fault entry says what is planted on the way.

The clean scan is an entry that plants nothing. The checks see run folders and files, never the entry.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from checks.check import Progress, silent
from checks.references.packs import load_pack
from plumbline_mcp.engines.environments import Environment
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry
from plumbline_mcp.scan.preparing import JOB_LIMIT_S, Made, Preparation
from plumbline_mcp.scan.scanning import CheckInputs, Scan, Scanned, Shared, Subject
from plumbline_mcp.scan.steps import StepProgress, steps_for
from plumbline_mcp.workspace import Workspace


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
        self._workspace, self._entry, self._shared = workspace, entry, shared
        self._making = Preparation(workspace, entry, corpus, shared)
        self._scan_steps = steps_for(load_pack(entry.framework), entry.checks)
        self._steps = StepProgress(2 + sum(step.parts for step in self._scan_steps), report)

    async def run(self) -> Scanned:
        made = await self._making.release(self._steps.begin("building the embedded release"))
        report = self._steps.begin("preparing the framework's environment")
        environment = await self._making.environment(report)
        subject = await self._subject(made, environment)
        instead = self._instead(made, environment)
        scan = Scan(self._workspace, subject, self._scan_steps, self._steps, self._shared, instead)
        return await scan.run()

    async def _subject(self, made: Made, environment: Environment) -> Subject:
        """The planted target; its checks read the release as it was published."""
        entry, plant = self._entry, self._entry.plant
        arguments, read = {name: dict(given) for name, given in entry.inputs.items()}, made.model
        if plant.edit_release:
            read = await self._making.copied("release", made.model)
            await self._making.edit(plant.edit_release, read)
            read_by = (("data", "model"), ("build", "model"), ("load", "model"), ("export", "original"))
            for step, argument in read_by:
                arguments.setdefault(step, {}).setdefault(argument, str(made.model))
        return Subject(
            framework=entry.framework,
            python=environment.python,
            files={"model": read, "workload": made.workload},
            recipe=entry.recipe,
            settings=plant.settings,
            arguments=arguments,
            plants=(self._making.planted().plant_file(plant.hook),) if plant.hook else (),
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

    async def _rows_job(self, job: str, made: Made, environment: Environment, scan: Scan) -> CheckInputs:
        """Run a job script of the corpus that dumps its rows as JSON lines."""
        self._steps.begin("running the framework's rows job")
        rows = self._making.fresh("rows").with_suffix(".jsonl")
        paths = [str(made.model), str(made.workload), str(rows)]
        script = self._making.planted().job_file(job)
        await self._making.script(
            environment.python, script, JOB_LIMIT_S, [*paths, *self._entry.plant.arguments]
        )
        return {"model": paths[0], "workload": paths[1], "rows": paths[2]}

    async def _export_job(self, job: str, made: Made, environment: Environment, scan: Scan) -> CheckInputs:
        """Run a job script of the corpus: it writes ``export`` and, where it trains one, ``adapter``."""
        self._steps.begin("running the framework's export job")
        out = self._making.fresh("job")
        out.mkdir(parents=True)
        script = self._making.planted().job_file(job)
        await self._making.script(environment.python, script, JOB_LIMIT_S, [str(made.model), str(out)])
        inputs: CheckInputs = {"original": str(made.model), "export": str(out / "export")}
        return inputs | ({"adapter": str(out / "adapter")} if (out / "adapter").is_dir() else {})

    async def _edited_export(self, script: str, made: Made, scan: Scan) -> CheckInputs:
        """The procedure's export, copied and edited."""
        done = await scan.job("export")
        export = await self._making.copied("export", done.output)
        await self._making.edit(script, export)
        return {"original": str(made.model), "export": str(export), "framework": self._entry.framework}
