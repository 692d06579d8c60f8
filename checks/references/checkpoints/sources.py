"""Opens what an export check was given: the release, an export folder or the run that wrote one."""

import hashlib
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from checks.errors import BadInput, Inconclusive, NotEvaluated
from checks.records.run_ends import how_it_ended, refuse_cancelled, where_to_look
from checks.records.runs import RunFolder, is_run_folder
from checks.references.checkpoints.folder import (
    DOCUMENTS,
    SINGLE,
    Checkpoint,
    open_checkpoint,
    read_documents,
)
from checks.references.checkpoints.header import Unreadable, open_regular
from checks.references.checkpoints.merging import WEIGHTS
from checks.rules import FULL_DIGEST_BYTES
from checks.verdict import DigestOf, Evidence, Place, Problem

_ADAPTER_SUFFIXES = (".json", ".safetensors", ".bin", ".pt")


@dataclass(frozen=True)
class Opened:
    """An export that was opened, or the problem that kept it from being so.

    ``documents``: its small files alone, where the weights cannot be read.
    """

    checkpoint: Checkpoint | None
    problems: tuple[Problem, ...] = ()
    run: RunFolder | None = None
    documents: Checkpoint | None = None

    @property
    def readable(self) -> Checkpoint | None:
        """Whatever of it can be read."""
        return self.checkpoint or self.documents


def open_reference(folder: Path, role: str) -> Checkpoint:
    """Open a checkpoint that things are held against. Raises `BadInput`, `Inconclusive`."""
    _require_folder(folder, role)
    try:
        checkpoint = open_checkpoint(folder)
        for name in DOCUMENTS:
            if name.endswith(".json"):
                checkpoint.json(name)
    except FileNotFoundError as error:
        raise BadInput(f"the {role}: {error}", "name a folder with model.safetensors or its index") from error
    except Unreadable as error:
        raise Inconclusive(
            f"the {role} cannot be read, so nothing can be held against it: {error}",
            "fetch it again and compare its digests with the published ones",
        ) from error
    return checkpoint


def _require_folder(folder: Path, role: str) -> None:
    if not folder.is_dir():
        raise BadInput(f"the {role} {folder} is no folder", "name a checkpoint folder")


def open_export(folder: Path) -> Opened:
    """Open an export folder, or the output of a sealed ``export`` run. Raises `BadInput`, `Inconclusive`."""
    _require_folder(folder, "export")
    if is_run_folder(folder):
        return _open_run(RunFolder.open(folder))
    return _open_folder(folder)


def _open_run(run: RunFolder) -> Opened:
    if run.job.procedure != "export":
        raise BadInput(
            f"run {run.job.run_id} is of the procedure {run.job.procedure!r}, not export",
            "name a run of the export procedure, or an export folder",
        )
    refuse_cancelled(run)
    exits = sorted(run.exits(), key=lambda rank: rank.stopped and not rank.timed_out)
    if not exits:
        raise NotEvaluated(f"run {run.job.run_id} has no exit file", "rerun the procedure")
    failed = next((rank for rank in exits if not rank.clean), None)
    if failed is not None:
        message = f"the exporter failed: rank {failed.rank} {how_it_ended(run, failed.rank, failed)}"
        place = Place(rank=failed.rank, file=f"logs/rank-{failed.rank:05d}.err")
        step = where_to_look(run, failed.rank, failed)
        step += "" if failed.timed_out else ", repair the export and run it again"
        problem = Problem(code="exporter-failed", message=message, place=place, next_step=step)
        return Opened(None, (problem,), run)
    for name in run.files(f"{run.job.output}/"):
        run.verified(name)
    opened = _open_folder(run.output) if run.output.is_dir() else _nothing(run.output)
    _refuse_unsealed(run, opened.readable)
    return replace(opened, run=run)


def _refuse_unsealed(run: RunFolder, checkpoint: Checkpoint | None) -> None:
    """Nothing is judged that the run did not leave: no file added later, no link (links are not sealed)."""
    used = [*checkpoint.documents, *(shard.name for shard in checkpoint.shards)] if checkpoint else []
    written = (path for path in run.output.rglob("*") if path.is_file() and not path.is_symlink())
    names = {f"{run.job.output}/{name}" for name in used}
    names |= {path.relative_to(run.path).as_posix() for path in written}
    unsealed = sorted(names - set(run.manifest))
    if unsealed:
        raise Inconclusive(
            f"run {run.job.run_id}: {', '.join(unsealed[:3])} is not in the manifest: it was added after"
            " sealing, or is a link",
            "rerun the procedure; what the run did not seal is never judged",
        )


def refuse_same(sides: dict[str, Path]) -> None:
    """Refuse two arguments that are one folder, by whatever path or link. Raises `BadInput`."""
    for (one, first), (other, second) in combinations(sides.items(), 2):
        if first.samefile(second):
            raise BadInput(f"{one} and {other} are the same folder, {second}", "name two folders")


def refuse_shared_weights(reference: Checkpoint, export: Checkpoint, role: str) -> None:
    """Refuse a reference whose weight file is the export's own by a hard link. Raises `BadInput`."""
    own = {_identity(shard.path): shard.name for shard in reference.shards}
    shared = next((shard.name for shard in export.shards if _identity(shard.path) in own), None)
    if shared is not None:
        raise BadInput(
            f"{shared} of the export and of the {role} are the same file",
            "name a checkpoint that was written apart from the export",
        )


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def unexpected_files(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str]]:
    """Files in the export that a loader reads beside its weights, and notes on those that none reads.

    An adapter beside a merged model is applied again by every loader that knows PEFT. Beside one
    ``model.safetensors`` without an index, serving engines read every ``*.safetensors`` of the folder;
    beside an index they read what it names. What the release has under the same name is no surprise.
    """
    here = {path.name for path in export.path.glob("adapter_*") if path.suffix in _ADAPTER_SUFFIXES}
    there = {path.name for path in original.path.glob("adapter_*")} | set(original.strays)
    problems = [_adapter_beside(name) for name in sorted(here - there)]
    strays = [name for name in export.strays if name not in here | there]
    released = sorted((here | set(export.strays)) & there)
    notes = [f"not judged, in the release too: {', '.join(released[:5])}"] if released else []
    if not export.indexed:
        problems += [_stray(name) for name in strays]
    elif strays:
        notes.append(f"not judged, no index names them and loaders follow it: {', '.join(strays[:5])}")
    return problems, notes


def _adapter_beside(name: str) -> Problem:
    return Problem(
        code="file-unexpected",
        message=f"{name} lies beside the weights: loaders that know PEFT apply the adapter to them",
        place=Place(file=name),
        next_step="delete the adapter's files from the export, or export the adapter alone",
    )


def _stray(name: str) -> Problem:
    return Problem(
        code="file-unexpected",
        message=f"{name} lies beside {SINGLE} without an index: serving engines load it too",
        place=Place(file=name),
        next_step="delete the file if an older export left it, or write an index that names every file",
    )


def _open_folder(folder: Path) -> Opened:
    try:
        return Opened(open_checkpoint(folder))
    except FileNotFoundError:
        return _nothing(folder)
    except Unreadable as error:
        code = "file-missing" if "No such file" in error.message else "file-unreadable"
        step = (
            "copy the export again, whole; if the file is missing or broken at its source, export again"
            if code == "file-missing" or "bytes long" in error.message
            else "look at how the exporter wrote this file, and export again"
        )
        problem = Problem(code=code, message=str(error), place=Place(file=error.file), next_step=step)
        return Opened(None, (problem,), documents=_documents(folder))


def _documents(folder: Path) -> Checkpoint | None:
    """A checkpoint of the small files alone; None where these cannot be read, or no configuration is there.

    A folder without a configuration is no export whose small files could be right or wrong.
    """
    try:
        found = read_documents(folder)
    except Unreadable:
        return None
    return Checkpoint(folder, {}, found) if "config.json" in found else None


def _nothing(folder: Path) -> Opened:
    if (folder / WEIGHTS).is_file():
        message = "the export holds an adapter alone: it was not merged into the model"
        step = "merge the adapter into the model and export that; then name the adapter as --adapter"
        place = Place(file=WEIGHTS)
        return Opened(None, (Problem(code="adapter-unmerged", message=message, place=place, next_step=step),))
    others = [
        path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(pattern))[:2]
    ]
    held = f"; it holds {', '.join(others)}, which are never unpickled" if others else ""
    message = f"the export holds no safetensors weights{held}"
    step = "name the folder that holds them, or set the exporter to write safetensors"
    problem = Problem(code="nothing-written", message=message, place=Place(file=SINGLE), next_step=step)
    return Opened(None, (problem,), documents=_documents(folder))


def evidence(checkpoint: Checkpoint, role: str) -> list[Evidence]:
    """Files up to `FULL_DIGEST_BYTES` by all their bytes, larger weights by their header."""
    found = [
        Evidence(
            path=str(checkpoint.path / name), sha256=hashlib.sha256(raw).hexdigest(), size=len(raw), role=role
        )
        for name, raw in checkpoint.documents.items()
    ]
    for shard in checkpoint.shards:
        digest, covers = shard.header.sha256, DigestOf.HEADER
        if shard.header.size <= FULL_DIGEST_BYTES:
            with open_regular(shard.path) as file:
                digest, covers = hashlib.file_digest(file, "sha256").hexdigest(), DigestOf.FILE
        path = str(checkpoint.path / shard.name)
        found.append(Evidence(path=path, sha256=digest, size=shard.header.size, role=role, digest_of=covers))
    return found
