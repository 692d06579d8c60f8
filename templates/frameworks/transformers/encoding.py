"""Turns conversations into rows as transformers documents it: chat template, generation mask, collator."""

import inspect
import re
from pathlib import Path

import transformers
from plumbline_binding.conversations import conversation_of, read_workload
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

IGNORED = -100


def read_tokenizer(job: dict) -> object:
    """The release's tokenizer, with the template that the job names."""
    tokenizer = AutoTokenizer.from_pretrained(job["inputs"]["model"])
    named = job["inputs"].get("template")
    if named is None and template_by_hand():
        named = Path(job["inputs"]["model"], "chat_template.jinja")
    if named is not None:
        tokenizer.chat_template = Path(named).read_text(encoding="utf-8")
    return tokenizer


def template_by_hand() -> "list[str]":
    """What stands in where this version does not read the release's template file by itself."""
    if hasattr(transformers.utils, "CHAT_TEMPLATE_FILE"):
        return []
    return ["transformers %s reads no chat_template.jinja: it was given by hand" % transformers.__version__]


def encode(job: dict, tokenizer: object, progress: object) -> "list[dict]":
    """Token ids and, where the template marks generation, labels of the marked tokens."""
    settings, encoded = job["settings"], []
    conversations = read_workload(job["inputs"]["workload"])
    marked = settings["collator"] == "seq2seq"
    if marked and not re.search(r"{%-?\s*generation\b", str(tokenizer.chat_template)):
        print(
            "the chat template marks no generation ({% generation %}): transformers supervises no token of it"
        )
    columns, arguments = settings.get("columns") or {}, settings.get("template_kwargs") or {}
    limit = settings.get("max_length")
    for number, row in enumerate(conversations):
        messages, tools = conversation_of(row, columns)
        result = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=marked,
            truncation=limit is not None,
            max_length=limit,
            **arguments,
        )
        features = {"input_ids": result["input_ids"], "attention_mask": result["attention_mask"]}
        if marked:
            mask = result["assistant_masks"]
            ids = result["input_ids"]
            features["labels"] = [token if on else IGNORED for token, on in zip(ids, mask)]  # noqa: B905 - Python 3.9
        encoded.append(features)
        progress(number + 1, len(conversations), "encoding the workload")
    return encoded


def make_collator(tokenizer: object, settings: dict) -> object:
    """The collator of the recipe."""
    if settings["collator"] == "seq2seq":
        return DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED)
    return DataCollatorForLanguageModeling(tokenizer, mlm=False)


def tokenizer_argument(trainer: type, tokenizer: object) -> "dict[str, object]":
    """The tokenizer under the name that this Trainer takes it by."""
    named = inspect.signature(trainer.__init__).parameters
    return {"processing_class" if "processing_class" in named else "tokenizer": tokenizer}


def start_epoch(loader: object, epoch: int) -> None:
    """Tell the loader its epoch, as the Trainer's own loop does before it iterates."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    sampler = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
