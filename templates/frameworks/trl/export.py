"""Export of a release through SFTTrainer: it loads the release and saves it, nothing in between."""

from plumbline_binding.load import sft_trainer


def export(job: dict, output: str, progress: object) -> "list[str]":
    """Load the release's model and tokenizer and save both into ``output``."""
    progress(0, 2, "loading the release")
    trainer = sft_trainer({**job, "settings": {"dtype": "auto", **job["settings"]}})
    progress(1, 2, "saving model and tokenizer")
    trainer.save_model(output)
    progress(2, 2, "saved")
    return []
