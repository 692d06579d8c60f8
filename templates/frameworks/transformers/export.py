"""Export of a release through transformers: load it as published, save it, nothing in between."""

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def export(job: dict, output: str, progress: object) -> "list[str]":
    """Load the release's model and tokenizer and save both into ``output``."""
    release = job["inputs"]["model"]
    config = AutoConfig.from_pretrained(release)
    architecture = (config.architectures or [""])[0]
    loader = getattr(transformers, architecture, AutoModelForCausalLM)
    progress(0, 3, "loading the release")
    with torch.no_grad():
        model = loader.from_pretrained(release, dtype="auto")
    progress(1, 3, "saving the model")
    model.save_pretrained(output)
    progress(2, 3, "saving the tokenizer")
    AutoTokenizer.from_pretrained(release).save_pretrained(output)
    progress(3, 3, "saved")
    return []
