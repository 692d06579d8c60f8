"""What a user of the Trainer is left with: the release loaded as for training, and saved by the Trainer.

Nothing is trained in between. Trainer.save_model writes model, configuration, generation settings and
tokenizer; the Trainer also turns ``use_cache`` off in the configuration and leaves its own arguments beside.
"""

from plumbline_binding.encoding import tokenizer_argument
from plumbline_binding.model import load_model
from plumbline_binding.recipe import parse
from transformers import AutoTokenizer, Trainer


def export(job: dict, output: str, progress: object) -> "list[str]":
    """Load the release's model and tokenizer and let the Trainer save both into ``output``."""
    job = {**job, "settings": {"dtype": "auto", **job["settings"]}}
    progress(0, 2, "loading the release")
    model = load_model(job)
    tokenizer = AutoTokenizer.from_pretrained(job["inputs"]["model"])
    trainer = Trainer(model=model, args=parse(job), **tokenizer_argument(Trainer, tokenizer))
    progress(1, 2, "saving model and tokenizer")
    trainer.save_model(output)
    progress(2, 2, "saved")
    return []
