"""What a run is followed by: the command that judges it or takes it further."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from approvals.visible import visible_line
from checks.errors import BadInput
from checks.references.packs import built_in, load_pack
from plumbline_mcp.engines.procedures import load_procedure

if TYPE_CHECKING:
    from checks.records.runs import Job
    from plumbline_mcp.workspace import Workspace


_MAX_PLACE = 4096
_JOB_AFTER = {"dry_run": "load"}
"""What is followed by another job, not by a check."""


def pack_of(job: "Job") -> str:
    """The pack of a job as an option names it: a built-in name, or a folder that is still that pack.

    Empty where it is neither: a job's file may have been written elsewhere, and its words are shown.
    """
    if not job.pack_folder:
        return job.framework if job.framework in built_in() else ""
    place = job.pack_folder
    if not Path(place).is_absolute() or visible_line(place, _MAX_PLACE) != place:
        return ""
    try:
        return place if load_pack(place).name == job.framework else ""
    except (BadInput, OSError):
        return ""


def next_signed(workspace: "Workspace", job: "Job") -> str:
    """The command that starts the job after a signed one, where its ticket covers that too; else empty."""
    from approvals.errors import Refused
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.scan.starting import covered_job

    after = _JOB_AFTER.get(job.procedure)
    if after is None or job.approval == "none":
        return ""
    try:
        covered_job(workspace, job.approval, after)
    except (Refused, UsageError):
        return ""
    return f"plumbline job start {job.approval} {after}"


def next_command(
    run_id: str, procedure: str, framework: str, inputs: Mapping[str, object], interpreter: str
) -> str:
    """The command that takes a run further, as one types it: paths are quoted for the shell.

    ``framework``: a built-in pack's name or a pack's folder; empty where that is not known any more.
    """
    common = f" --framework {shlex.quote(framework)}" if framework else ""
    paths = {name: shlex.quote(str(path)) for name, path in inputs.items()}
    of_model = paths.get("model")
    model = f"--model {of_model}"
    following = {
        "rows": f"check data {model} --workload {paths.get('workload')} --rows {run_id}",
        "export": f"check export --original {of_model} --export {run_id}",
        # it built the model without its weights: nothing to judge
        "dry_run": f"run load {model} --python {shlex.quote(interpreter)}",
        "build": f"check build --run {run_id} {model}",
        "load": f"check load --run {run_id} {model}",
    }
    # the rows were rendered with it: whether inference does so too, only the user knows
    template = f" --template {paths['template']}" if procedure == "rows" and "template" in paths else ""
    if procedure in following:
        return f"plumbline {following[procedure]}{common}{template}"
    feeds = load_procedure(procedure).feeds
    return f"plumbline check {feeds[0]} --run {run_id}{common}" if feeds else f"plumbline show {run_id}"
