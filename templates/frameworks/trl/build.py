"""The model of a recipe as SFTTrainer would train it."""

from plumbline_binding.load import sft_trainer
from plumbline_binding.model import freeze, placed


def build(job: dict, recorder: object, progress: object) -> "list[str]":
    """Build the model and record it. Returns what stood in for what: nothing."""
    progress(0, 2, "loading the release")
    trainer = sft_trainer(job)
    freeze(trainer.model, job["settings"])
    progress(1, 2, "recording the model")
    recorder.built(placed(trainer, job["settings"]))
    progress(2, 2, "built")
    return []
