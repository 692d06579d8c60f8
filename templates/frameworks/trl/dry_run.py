"""The recipe through TrlParser and SFTTrainer itself, on the release's model without memory.

SFTTrainer looks at the recipe, the chat template and the data only when it is made: what it does not take it
says there, and the job ends with its sentence. A few rows of the workload are enough for that, or one
conversation of our own where the job names none.
"""

import traceback

from plumbline_binding.encoding import read_tokenizer
from plumbline_binding.model import adapter_config, built_on_meta, freeze, meta_model
from plumbline_binding.recipe import optimizer_class, refuse
from plumbline_binding.supervised import Unmoved, data_set_of, make_data_set, parse
from trl import SFTConfig

ROWS = 16
CONVERSATION = {
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning"}]
}


def dry_run(job: dict, recorder: object, progress: object) -> "list[str]":
    """Parse the recipe, make the trainer and build the model. Returns what stood in for what."""
    built_on_meta(job, parse, recorder, progress, lambda job, arguments: trained(job, arguments, progress))
    if "workload" in job["inputs"]:
        return ["the first %d rows of the workload stood in for all of them" % ROWS]
    return ["one conversation of two turns stood in for the workload"]


def trained(job: dict, arguments: SFTConfig, progress: object) -> object:
    """The model as SFTTrainer takes it; the sentence with which it refuses ends the job."""
    settings = job["settings"]
    try:
        trainer = Unmoved(
            model=meta_model(job),
            args=arguments,
            train_dataset=few_rows(job, progress),
            processing_class=read_tokenizer(job),
            peft_config=adapter_config(settings),
            **optimizer_class(settings),
        )
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        if not said_by_trl(error):
            raise
        refuse(" ".join(str(error).split()))
    freeze(trainer.model, settings)
    return trainer.model


def few_rows(job: dict, progress: object) -> object:
    """The first rows of the workload, or one conversation."""
    if "workload" in job["inputs"]:
        return make_data_set(job, progress, ROWS)
    plain = {name: value for name, value in job["settings"].items() if name != "columns"}
    return data_set_of([CONVERSATION], plain, progress)


def said_by_trl(error: Exception) -> bool:
    """Whether TRL's own code raised it: what a model without memory cannot do is no refusal."""
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return str(last.f_globals.get("__name__", "")).split(".")[0] == "trl"
