"""The model of a recipe as the Trainer would train it."""

from plumbline_binding.model import load_model, placed, trainable
from plumbline_binding.recipe import parse
from transformers import Trainer, set_seed


def build(job: dict, recorder: object, progress: object) -> "list[str]":
    """Build the model and record it. Returns what stood in for what: nothing."""
    arguments = parse(job)
    set_seed(arguments.seed)
    progress(0, 2, "loading the release")
    trainer = Trainer(model=trainable(load_model(job), job["settings"]), args=arguments)
    progress(1, 2, "recording the model")
    recorder.built(placed(trainer, job["settings"]))
    progress(2, 2, "built")
    return []
