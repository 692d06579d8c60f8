"""Job: load a release with the installed transformers and save it again.

Usage: save_through_transformers.py RELEASE OUT
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(release: str, out: str) -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(release, dtype="auto")
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(release).save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
