"""Opens what an export check was given: the release, an export folder or the run that wrote one."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadInput, Inconclusive, NotEvaluated
from checks.records.runs import RunFolder, is_run_folder
from checks.references.checkpoints.folder import DOCUMENTS, Checkpoint, open_checkpoint
from checks.references.checkpoints.header import Unreadable, open_regular
from checks.references.checkpoints.merging import WEIGHTS
from checks.rules import FULL_DIGEST_BYTES
from checks.verdict import DigestOf, Evidence, Place, Problem

_LAST_LINE = 300
_TAIL = 64 * 1024


@dataclass(frozen=True)
class Opened:
    """An export that was opened, or the problem that kept it from being so."""

    checkpoint: Checkpoint | None
    problems: tuple[Problem, ...] = ()
    run: RunFolder | None = None


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
    exits = run.exits()
    if not exits:
        raise NotEvaluated(f"run {run.job.run_id} has no exit file", "rerun the procedure")
    failed = next((rank for rank in exits if not rank.clean), None)
    if failed is not None:
        how = (
            "ran out of time"
            if failed.timed_out
            else f"ended with code {failed.code}, signal {failed.signal}"
        )
        line = last_line(run, failed.rank)
        message = f"the exporter failed: rank {failed.rank} {how}; its last line of stderr: {line}"
        place = Place(rank=failed.rank, file=f"logs/rank-{failed.rank:05d}.err")
        return Opened(None, (Problem(code="exporter-failed", message=message, place=place),), run)
    for name in run.files(f"{run.job.output}/"):
        run.verified(name)
    opened = _open_folder(run.output) if run.output.is_dir() else _nothing(run.output)
    return Opened(opened.checkpoint, opened.problems, run)


def last_line(run: RunFolder, rank: int) -> str:
    """The last line a rank wrote to stderr, escaped and clipped: text from a job, untrusted."""
    name = f"logs/rank-{rank:05d}.err"
    if name not in run.manifest:
        return "(none)"
    path = run.verified(name)
    with path.open("rb") as file:
        file.seek(max(0, run.manifest[name][1] - _TAIL))
        lines = [line for line in file.read(_TAIL).decode("utf-8", "replace").splitlines() if line.strip()]
    text = lines[-1] if lines else "(none)"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)[:_LAST_LINE]


def _open_folder(folder: Path) -> Opened:
    try:
        return Opened(open_checkpoint(folder))
    except FileNotFoundError:
        return _nothing(folder)
    except Unreadable as error:
        code = "file-missing" if "No such file" in error.message else "file-unreadable"
        problem = Problem(code=code, message=str(error), place=Place(file=error.file))
        return Opened(None, (problem,))


def _nothing(folder: Path) -> Opened:
    if (folder / WEIGHTS).is_file():
        message = "the export holds an adapter alone: it was not merged into the model"
        return Opened(None, (Problem(code="adapter-unmerged", message=message, place=Place(file=WEIGHTS)),))
    others = [
        path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(pattern))[:2]
    ]
    held = f"; it holds {', '.join(others)}, which are never unpickled" if others else ""
    message = f"the export holds no safetensors weights{held}"
    return Opened(
        None, (Problem(code="nothing-written", message=message, place=Place(file="model.safetensors")),)
    )


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
