"""The arguments of the data check."""

from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from checks.check import Inputs


class DataInputs(Inputs):
    """What is compared, and the recipe's settings that decide the right answer."""

    model: Path = Field(
        description="folder of the official release: tokenizer.json, chat template, generation_config.json",
        examples=["models/gpt-oss-20b"],
    )
    workload: Path = Field(
        description="conversations that training reads, JSONL or JSON: messages (role, content), "
        "conversations (from, value), prompt and completion, or question and answer",
        examples=["data/train.jsonl"],
    )
    rows: Path = Field(
        description="rows as they enter the model: JSONL or safetensors with input_ids and labels, a data "
        "set that Hugging Face datasets saved, or a run folder",
        examples=["rows.jsonl"],
    )
    template: Path | None = Field(
        None,
        description="chat template that inference uses, where it is not the release's own",
        examples=["chat_template.jinja"],
    )
    columns: dict[str, str] = Field(
        {},
        description="which column of the workload is messages, or prompt and completion, system, tools",
        examples=[{"prompt": "question", "completion": "answer"}],
    )
    template_kwargs: dict[str, JsonValue] = Field(
        {},
        description="arguments that the recipe gives the chat template",
        examples=[{"enable_thinking": False}],
    )
    date: str | None = Field(
        None,
        description="date the rows were made on, for templates that print today's date",
        examples=["2026-01-31"],
    )
    max_length: int | None = Field(
        None,
        ge=1,
        description="tokens after which the recipe cuts a row (with wrapped packing: a sequence)",
        examples=[4096],
    )
    packing: Literal["none", "documents", "wrapped"] | None = Field(
        None,
        description="whether the recipe packs whole documents into a sequence (documents), or slices the "
        "stream of all documents at --max-length, across sequences (wrapped); none unless this or a run "
        "says so",
    )
    shuffle: bool | None = Field(
        None,
        description="whether the recipe shuffles the rows; else their order is the workload's",
    )
    supervise: Literal["all", "last", "marked"] | None = Field(
        None,
        description="which assistant turns the recipe supervises; marked: as messages say (weight: 0, train: "
        "false); by default all, where none says so",
    )
    labels: Literal["aligned", "shifted"] | None = Field(
        None,
        description="whether labels stand at their own tokens (aligned, as in Hugging Face; the default) or "
        "one ahead (shifted)",
    )
    framework: str | None = Field(
        None, description="connection pack whose documented settings are cited", examples=["transformers"]
    )
