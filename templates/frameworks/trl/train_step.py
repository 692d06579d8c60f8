"""Steps of SFTTrainer, watched by the recorder."""

from plumbline_binding.encoding import template_by_hand
from plumbline_binding.supervised import make_trainer
from plumbline_binding.training import Watch, watch_batches


def train(job: dict, recorder: object, progress: object) -> "list[str]":
    """Train by the recipe. Returns what stood in for what."""
    trainer = make_trainer(job, progress, [Watch(recorder, progress)])
    recorder.model(trainer.model, "built")
    watch_batches(trainer, recorder)
    trainer.train()
    return template_by_hand()
