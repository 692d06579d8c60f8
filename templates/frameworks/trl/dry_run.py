"""The recipe through TrlParser, the release's model on the meta device."""

from pathlib import Path

from plumbline_binding.model import meta_model, trainable
from plumbline_binding.supervised import parse


def dry_run(job: dict, recorder: object, progress: object) -> "list[str]":
    """Parse the recipe, build the model without memory, and leave the parsed arguments in the output."""
    progress(0, 2, "parsing the recipe")
    arguments = parse(job)
    output = Path(__file__).absolute().parents[2] / job["output"]
    (output / "arguments.json").write_text(arguments.to_json_string(), encoding="utf-8")
    progress(1, 2, "building the model on the meta device")
    recorder.model(trainable(meta_model(job), job["settings"]), "meta")
    progress(2, 2, "built")
    return []
