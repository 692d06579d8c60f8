"""The release as SFTTrainer loads it from its path, into memory that the recorder filled before."""

from datasets import Dataset
from plumbline_binding.encoding import read_tokenizer
from plumbline_binding.filling import filled
from plumbline_binding.model import adapter_config
from plumbline_binding.supervised import model_options, parse
from trl import SFTTrainer

READY = {"input_ids": [[0, 0]], "labels": [[0, 0]], "completion_mask": [[1, 1]]}
"""A data set that is already prepared: SFTTrainer wants one before it loads."""


def load(job: dict, recorder: object, number: int) -> "list[str]":
    """Load the release once, with the fill of this number. Returns what stood in for what: nothing."""
    with filled(recorder):
        trainer = sft_trainer(job)
    recorder.loaded(trainer.model, number)
    return []


def sft_trainer(job: dict) -> SFTTrainer:
    """The trainer with the release's model, the recipe's adapter if it has one, and nothing to train on."""
    arguments = parse(job)
    arguments.model_init_kwargs = model_options(job)
    return SFTTrainer(
        model=job["inputs"]["model"],
        args=arguments,
        train_dataset=Dataset.from_dict(READY),
        processing_class=read_tokenizer(job),
        peft_config=adapter_config(job["settings"]),
    )
