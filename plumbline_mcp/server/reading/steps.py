"""Reads what a rank recorded of its optimizer steps, in a worker."""

import math
from pathlib import Path
from typing import Any

from approvals.visible import visible_line
from checks.check import Progress
from checks.errors import BadInput, NotEvaluated
from checks.records.runs import RunFolder, is_run_folder
from checks.records.steps import Group, MicroBatch, RankSteps, StepLine, read_rank
from plumbline_mcp.server.reading.sealed import sealed_run_of

_NAME = 80
_GROUPS = 32
_MICRO_BATCHES = 64
_LOGGED = 24


def read_steps(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """``payload``: path, run, manifest_sha256, rank, skip, limit.

    Returns ``total``, ``ranks`` and the ``steps`` from ``skip`` on. Every file that is read was verified.
    """
    run = _run(payload)
    folders = run.rank_folders()
    wanted = f"records/rank-{payload['rank']:05d}"
    if wanted not in folders:
        known = ", ".join(str(int(name.rpartition("-")[2])) for name in folders) or "none"
        raise BadInput(f"rank {payload['rank']} recorded nothing", f"ranks that recorded: {known}")
    progress(0, None, f"reading the steps of rank {payload['rank']}")
    found, _ = read_rank(run, wanted)
    if not found.lines:
        raise NotEvaluated(
            f"run {run.job.run_id} recorded no optimizer step (procedure {run.job.procedure})",
            "run the train_step procedure of the framework's pack",
        )
    chosen = found.lines[payload["skip"] : payload["skip"] + payload["limit"]]
    return {
        "total": len(found.lines),
        "ranks": run.job.world_size,
        "steps": [_step(found, line, wanted) for line in chosen],
        "unavailable": [visible_line(text, _NAME) for text in found.unavailable[:_GROUPS]],
    }


def _run(payload: dict[str, Any]) -> RunFolder:
    run = sealed_run_of(payload)
    if run is None or not is_run_folder(Path(payload["path"])):
        raise BadInput(
            f"{payload['path']} is no run folder", "name a run, as run_list gives it, of procedure train_step"
        )
    return run


def _step(found: RankSteps, line: StepLine, folder: str) -> dict[str, Any]:
    logged = found.logged.get(line.step, {})
    return {
        "step": line.step,
        "epoch": _finite(line.epoch),
        "untrusted_optimizer": visible_line(line.optimizer.name, _NAME),
        "micro_batches_total": len(line.micro_batches),
        "micro_batches": [_micro_batch(batch) for batch in line.micro_batches[:_MICRO_BATCHES]],
        "groups_total": len(line.groups),
        "groups": [_group(group) for group in line.groups[:_GROUPS]],
        "clip_max_norm": _finite(line.clip.max_norm) if line.clip else None,
        "clip_returned": _finite(line.clip.returned) if line.clip else None,
        "gradient_norm_raw": _norm(line.gradient_squares_raw),
        "gradient_norm_used": _norm(line.gradient_squares_used),
        "untrusted_logged": {
            visible_line(name, _NAME): _finite(value) for name, value in list(logged.items())[:_LOGGED]
        },
        "tensors": f"{folder}/step-{line.step:06d}.safetensors" if line.step in found.full else None,
    }


def _micro_batch(batch: MicroBatch) -> dict[str, Any]:
    return {
        "rows": batch.rows,
        "tokens": batch.tokens,
        "supervised": batch.supervised,
        "loss": _finite(batch.loss),
        "differentiated": _finite(batch.differentiated),
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "parameters": len(group.params),
        "untrusted_first": visible_line(group.params[0], _NAME) if group.params else None,
        "learning_rate": _finite(group.number("lr")),
        "weight_decay": _finite(group.number("weight_decay")),
    }


def _norm(squares: dict[str, float] | None) -> float | str | None:
    """The 2-norm over the rank's local gradients."""
    return None if squares is None else _finite(math.sqrt(math.fsum(squares.values())))


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
