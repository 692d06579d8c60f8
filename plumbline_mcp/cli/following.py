"""What a run is followed by: the command that judges it or takes it further."""

import shlex
from collections.abc import Mapping

from plumbline_mcp.engines.procedures import load_procedure


def next_command(run_id: str, procedure: str, framework: str, inputs: Mapping[str, object]) -> str:
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
        "dry_run": f"run load {model}",  # it built the model without its weights: nothing to judge
        "load": f"check load --run {run_id} {model}",
    }
    # the rows were rendered with it: whether inference does so too, only the user knows
    template = f" --template {paths['template']}" if procedure == "rows" and "template" in paths else ""
    if procedure in following:
        return f"plumbline {following[procedure]}{common}{template}"
    feeds = load_procedure(procedure).feeds
    return f"plumbline check {feeds[0]} --run {run_id}{common}" if feeds else f"plumbline show {run_id}"
