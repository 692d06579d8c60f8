"""Job: a seeded LoRA adapter on the embedding, the head and a projection, merged and saved by the installed
peft.

Usage: peft_tied_merge.py BASE OUT. Writes OUT/adapter and OUT/export. With a base that ties head and
embedding
both updates go into the one shared tensor; with an untied base the merge is right.
"""

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(base: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"])
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    adapted.save_pretrained(Path(out) / "adapter")
    adapted.merge_and_unload().save_pretrained(Path(out) / "export")
    AutoTokenizer.from_pretrained(base).save_pretrained(Path(out) / "export")


if __name__ == "__main__":
    main(*sys.argv[1:])
