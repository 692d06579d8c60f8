"""What a scan of the embedded release needs before anything is judged: release, workload and environment.

The fault of an entry is planted here, so that nothing later in the scan has to know of it.
"""

import base64
import contextlib
import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from checks.check import Progress
from checks.errors import BadInput
from checks.references.packs import load_pack
from plumbline_mcp import workers
from plumbline_mcp.engines.environments import Environment, build_in_worker
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry
from plumbline_mcp.scan.scanning import Shared
from plumbline_mcp.temporaries import sweep_temporaries, temporary_beside
from plumbline_mcp.workspace import Workspace

JOB_LIMIT_S = 600.0
_EDIT_LIMIT_S = 120.0
_PLANTED = "_planted"


@dataclass(frozen=True)
class Made:
    """The embedded release and workload on disk."""

    model: Path
    workload: Path


@dataclass(frozen=True)
class Preparation:
    """The person's side of one entry."""

    workspace: Workspace
    entry: FaultEntry
    corpus: Corpus | None
    shared: Shared
    name: str = ""
    """What copies are named after: the entry's id by default."""

    async def release(self, report: Progress) -> Made:
        """Build release and workload, as the entry wants them."""
        spec = {"spec": self.entry.release.model_dump(), "rows": self.entry.rows}
        name = f"{self.entry.release.family}-{self.entry.rows}-rows-{_key(spec)}"
        folder = self.workspace.home / "example" / name
        make = partial(_build_release, folder, spec, report)
        return await self.shared.once(f"release {folder.name}", make)

    async def environment(self, report: Progress) -> Environment:
        """The entry's environment; of an edited one a copy. Raises `BuildError`, `BadInput`."""
        plant, pack = self.entry.plant, load_pack(self.entry.framework).about.environment
        wanted = plant.requirements or pack.requirements
        alone = plant.without_dependencies or pack.without_dependencies
        environment = await build_in_worker(wanted, without_dependencies=alone, progress=report)
        if not plant.edit_environment:
            return environment
        copy = await self.copied("environment", environment.path)  # the cached one serves others
        await self.edit(plant.edit_environment, copy)
        return Environment(copy / "bin" / "python", environment.digest, copy)

    async def faulty_environment(self, environment: Environment) -> Environment:
        """The environment as if its transformers had been released with the entry's hook in it: a copy.

        The hook is imported where transformers is, which is before any of a job's own work, and is in the
        distribution's list of files like each of its own, so that it is found by what it does.
        """
        copy = environment.path
        if not self.entry.plant.edit_environment:
            copy = await self.copied("environment", environment.path)
        hook = self.planted().plant_file(str(self.entry.plant.hook))
        await anyio.to_thread.run_sync(_release_with, hook, copy)
        return Environment(copy / "bin" / "python", environment.digest, copy)

    async def copied(self, what: str, source: Path) -> Path:
        """A copy of a folder, of this entry."""
        copy = self.fresh(what)
        await anyio.to_thread.run_sync(partial(shutil.copytree, source, copy, symlinks=True))
        return copy

    def fresh(self, what: str) -> Path:
        """A path of this entry where nothing lies."""
        path = self.workspace.home / "example" / f"{self.name or self.entry.id}-{what}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def planted(self) -> Corpus:
        """The corpus of the plants. Raises `BadInput` where there is none."""
        if self.corpus is None:
            raise BadInput(f"entry {self.entry.id} plants a fault and no corpus holds it", "name its corpus")
        return self.corpus

    async def edit(self, script: str, target: Path) -> None:
        """Run an edit script on files; one that fails or changes nothing planted nothing."""
        before, file = _contents(target), self.planted().plant_file(script)
        arguments = [str(target), *self.entry.plant.arguments]
        await self.script(Path(sys.executable), file, _EDIT_LIMIT_S, arguments)
        if _contents(target) == before:
            raise BadInput(f"plant {script} of entry {self.entry.id} changed nothing")

    async def script(self, python: Path, script: Path, limit_s: float, arguments: list[str]) -> None:
        """Run a script of the corpus. Raises `BadInput` with the last line it said when it fails."""
        command, environment = (
            [str(python), "-I", str(script), *arguments],
            workers.clean_environment(os.environ),
        )
        with anyio.fail_after(limit_s):
            done = await anyio.run_process(command, check=False, env=environment, start_new_session=True)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise BadInput(f"{script.name} of entry {self.entry.id} failed: {''.join(said)[:300]}")


def _release_with(hook: Path, environment: Path) -> None:
    """Put a module into the transformers of an environment, and both files into its RECORD.

    Raises `BadInput` where there is no transformers with a RECORD.
    """
    record = next(environment.glob("lib/python*/site-packages/transformers-*.dist-info/RECORD"), None)
    if record is None:
        raise BadInput(f"{environment} holds no transformers that a hook could be planted into")
    site, name = record.parent.parent, f"transformers/{_PLANTED}.py"
    first = site / "transformers" / "__init__.py"
    shutil.copyfile(hook, site / name)
    first.write_text(
        f"{first.read_text(encoding='utf-8')}\nimport transformers.{_PLANTED}\n", encoding="utf-8"
    )
    for cached in (first.parent / "__pycache__").glob("__init__.*.pyc"):
        cached.unlink()
    changed = ("transformers/__init__.py", name)
    lines = [
        line
        for line in record.read_text(encoding="utf-8").splitlines()
        if not line.startswith((f"{changed[0]},", "transformers/__pycache__/__init__."))
    ]
    record.write_text(
        "\n".join([*lines, *(_recorded(site, one) for one in changed)]) + "\n", encoding="utf-8"
    )


def _recorded(site: Path, name: str) -> str:
    """A file's line of RECORD, as the wheel format spells it."""
    data = (site / name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


async def _build_release(folder: Path, spec: dict[str, Any], report: Progress) -> Made:
    """Build beside the place and rename: a stopped build leaves nothing half-written or half-removed."""
    sweep_temporaries(folder.parent)
    temporary, old = temporary_beside(folder), temporary_beside(folder)
    made = Made(folder / "release", folder / "workload.jsonl")
    payload = {"model": str(temporary / "release"), "workload": str(temporary / "workload.jsonl"), **spec}
    try:
        await workers.call(
            "plumbline_mcp.scan.example_release:build", payload, progress=report, timeout_s=JOB_LIMIT_S
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
