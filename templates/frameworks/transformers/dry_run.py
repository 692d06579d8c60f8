"""The recipe through HfArgumentParser, the release's model on the meta device."""

import json
from pathlib import Path

import torch

from plumbline_binding.model import dtype_argument, read_config, release_class, trainable
from plumbline_binding.recipe import parse


def dry_run(job: dict, recorder: object, progress: object) -> "list[str]":
    """Parse the recipe, build the model without memory, and leave the parsed arguments in the output."""
    progress(0, 2, "parsing the recipe")
    arguments = parse(job)
    output = Path(__file__).absolute().parents[2] / job["output"]
    (output / "arguments.json").write_text(arguments.to_json_string(), encoding="utf-8")
    progress(1, 2, "building the model on the meta device")
    config = read_config(job)
    with torch.device("meta"):
        model = release_class(config)._from_config(config, **dtype_argument(job["settings"]["dtype"]))  # noqa: SLF001 - what AutoModelForCausalLM.from_config calls
    recorder.model(trainable(model, job["settings"]), "meta")
    progress(2, 2, "built")
    return []
