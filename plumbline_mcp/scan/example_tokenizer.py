"""The embedded release's tokenizer: a byte-level BPE trained on its workload, always with the same bytes."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

from plumbline_mcp.scan.example_workload import conversations

MERGED_VOCABULARY = 960
"""Tokens before the special ones: 256 bytes and 704 merges."""

BOS, PAD, RETURN, CALL = "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|call|>"
SPECIAL_TOKENS = (
    BOS,
    PAD,
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|end|>",
    RETURN,
    CALL,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)

# Digits in groups of up to three, words with the space before them, other signs, line ends: a splitter
# that no tokenizer class of transformers builds by itself, so a class that rebuilds its own is seen.
_SPLIT = r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def token_ids() -> dict[str, int]:
    """Ids of the special tokens: they follow the merged vocabulary, as in the released models."""
    return {token: MERGED_VOCABULARY + index for index, token in enumerate(SPECIAL_TOKENS)}


def _text() -> list[str]:
    return [json.dumps(row, ensure_ascii=False, indent=None) for row in conversations()]


def train() -> Tokenizer:
    """The tokenizer; its post-processor adds the begin token, so text that already has one gets two."""
    tokenizer = Tokenizer(BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, token_ids()[BOS])]
    )
    return tokenizer


def _config(tokenizer_class: str, pad: str) -> dict[str, Any]:
    added = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token, index in token_ids().items()
    }
    return {
        "added_tokens_decoder": added,
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": RETURN,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 4096,
        "pad_token": pad,
        "tokenizer_class": tokenizer_class,
    }


def write_tokenizer(folder: Path, tokenizer_class: str, pad: str) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``."""
    (folder / "tokenizer.json").write_text(train().to_str(pretty=True), encoding="utf-8")
    config = _config(tokenizer_class, pad)
    specials = {name: config[name] for name in ("bos_token", "eos_token", "pad_token")}
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", specials)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
