"""The Trainer of a recipe, watched by the recorder."""

from plumbline_binding.encoding import (
    encode,
    make_collator,
    read_tokenizer,
    template_by_hand,
    tokenizer_argument,
)
from plumbline_binding.model import load_model, trainable
from plumbline_binding.recipe import optimizer_class, parse
from transformers import Trainer, TrainerCallback, set_seed


class Watch(TrainerCallback):
    """Hands what the Trainer logs to the recorder and tells how far it is."""

    def __init__(self, recorder: object, progress: object) -> None:
        """Tell ``recorder`` and ``progress``."""
        self._recorder, self._progress = recorder, progress

    def on_log(
        self, args: object, state: object, control: object, logs: "dict | None" = None, **rest: object
    ) -> None:
        """The values as logged, under the step they belong to."""
        self._recorder.logged(state.global_step, dict(logs or {}))

    def on_step_end(self, args: object, state: object, control: object, **rest: object) -> None:
        """An optimizer step is over."""
        self._progress(state.global_step, state.max_steps, "training")


def watch_batches(trainer: Trainer, recorder: object) -> None:
    """Let the recorder see each batch as it enters the training step.

    With label smoothing the Trainer keeps the labels to itself, and the model is called without them.
    """
    step = trainer.training_step

    def training_step(model: object, inputs: dict, *rest: object, **named: object) -> object:
        recorder.batch(inputs)
        return step(model, inputs, *rest, **named)

    trainer.training_step = training_step


def train(job: dict, recorder: object, progress: object) -> "list[str]":
    """Train by the recipe. Returns what stood in for what."""
    settings = job["settings"]
    arguments = parse(job)
    set_seed(arguments.seed)
    tokenizer = read_tokenizer(job)
    rows = encode(job, tokenizer, progress)
    progress(0, None, "loading the release")
    model = trainable(load_model(job), settings)
    recorder.model(model, "built")
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=make_collator(tokenizer, settings),
        callbacks=[Watch(recorder, progress)],
        **tokenizer_argument(Trainer, tokenizer),
        **optimizer_class(settings),
    )
    watch_batches(trainer, recorder)
    trainer.train()
    return template_by_hand()
