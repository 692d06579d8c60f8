"""Rows of the transformers Trainer: chat template, data set, collator and data loader, without training."""

import inspect
import json
import re
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainingArguments,
)

IGNORED = -100
SPEAKERS = {"human": "user", "gpt": "assistant"}
CHATS = ("messages", "conversations")
PAIRS = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("instruction", "output"))


class LoggedRows(torch.utils.data.Dataset):
    """The encoded rows; remembers the order in which the loader fetched them."""

    def __init__(self, rows: "list[dict[str, list[int]]]") -> None:
        """Hold the encoded rows."""
        self._rows = rows
        self.fetched: "list[int]" = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> "dict[str, list[int]]":
        self.fetched.append(int(index))
        return dict(self._rows[index])


class StandIn(torch.nn.Module):
    """Takes the arguments that the release's model takes, without its weights."""

    def __init__(self, config: object, forward: object) -> None:
        """Carry the release's config and the signature of its model's ``forward``."""
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = config
        self.forward = _taking(inspect.signature(forward))


def _taking(signature: "inspect.Signature") -> object:
    def forward(**arguments: object) -> None:
        raise RuntimeError("the stand-in for the model is never run")

    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    forward.__signature__ = signature.replace(parameters=parameters)
    return forward


def rows(job: dict, writer: object, progress: object) -> "list[str]":
    """Record every sequence of every epoch as the Trainer would feed it to the model."""
    settings = job["settings"]
    tokenizer = AutoTokenizer.from_pretrained(job["inputs"]["model"])
    if "template" in job["inputs"]:
        tokenizer.chat_template = Path(job["inputs"]["template"]).read_text(encoding="utf-8")
    conversations = read_workload(job["inputs"]["workload"])
    data_set = LoggedRows(encode(tokenizer, conversations, settings, progress))
    trainer = make_trainer(job, tokenizer, data_set)
    loader = trainer.get_train_dataloader()
    for epoch in range(settings["epochs"]):
        data_set.fetched.clear()
        start_epoch(loader, epoch)
        record_epoch(trainer, loader, data_set, epoch + 1, writer, progress)
    return ["a module without weights stood in for the model: only the signature of its forward is used"]


def read_workload(path: str) -> "list[dict]":
    """The conversations of a JSON file or of JSON lines."""
    with Path(path).open(encoding="utf-8") as file:
        if file.read(64).lstrip().startswith("["):
            file.seek(0)
            return json.load(file)
        file.seek(0)
        return [json.loads(line) for line in file if line.strip()]


def conversation_of(row: dict, columns: "dict[str, str]") -> "tuple[list[dict], list | None]":
    """Messages and tools of a workload row, from the columns that the recipe names or that are usual."""
    pair = pair_of(row, columns)
    if pair:
        messages = [{"role": "user", "content": row[pair[0]]}, {"role": "assistant", "content": row[pair[1]]}]
    else:
        named = columns.get("messages") or next((name for name in CHATS if name in row), None)
        if named is None or named not in row:
            raise SystemExit(
                "the workload has the columns %s: name the one with the messages, or prompt and completion, "
                "with --set columns={...}" % ", ".join(sorted(row))
            )
        messages = [as_message(entry) for entry in row[named]]
    system = row.get(columns.get("system", "system"))
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    tools = row.get(columns.get("tools", "tools"))
    return messages, json.loads(tools) if isinstance(tools, str) and tools else tools


def pair_of(row: dict, columns: "dict[str, str]") -> "tuple[str, str] | None":
    """The columns of question and answer, where the row is such a pair."""
    if "prompt" in columns:
        answer = columns.get("completion") or columns.get("response")
        if answer is None or answer not in row or columns["prompt"] not in row:
            raise SystemExit(
                "columns %s: prompt and completion each have to name one of %s" % (columns, sorted(row))
            )
        return columns["prompt"], answer
    if "messages" in columns or any(name in row for name in CHATS):
        return None
    return next((pair for pair in PAIRS if pair[0] in row and pair[1] in row), None)


def as_message(entry: dict) -> dict:
    """A message in the form that chat templates read; ShareGPT names its speakers otherwise."""
    if "from" not in entry:
        return entry
    return {"role": SPEAKERS.get(entry["from"], entry["from"]), "content": entry["value"]}


def encode(tokenizer: object, conversations: "list[dict]", settings: dict, progress: object) -> "list[dict]":
    """Token ids and, where the template marks generation, labels of the marked tokens."""
    encoded = []
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
            features["labels"] = [token if on else IGNORED for token, on in zip(ids, mask, strict=True)]
        encoded.append(features)
        progress(number + 1, len(conversations), "encoding the workload")
    return encoded


def make_trainer(job: dict, tokenizer: object, data_set: LoggedRows) -> Trainer:
    """The Trainer of the recipe with a stand-in for the model."""
    settings = job["settings"]
    config = AutoConfig.from_pretrained(job["inputs"]["model"])
    architecture = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0], None)
    if architecture is None or not hasattr(architecture, "forward"):
        architecture = AutoModelForCausalLM._model_mapping[type(config)]  # noqa: SLF001 - no public map
    if settings["collator"] == "seq2seq":
        collator = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED)
    else:
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    arguments = TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=settings["batch_size"],
        num_train_epochs=settings["epochs"],
        train_sampling_strategy="random" if settings["shuffle"] else "sequential",
        seed=settings["seed"],
        data_seed=settings["seed"],
        dataloader_num_workers=0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    return Trainer(
        model=StandIn(config, architecture.forward),
        args=arguments,
        train_dataset=data_set,
        data_collator=collator,
        processing_class=tokenizer,
    )


def start_epoch(loader: object, epoch: int) -> None:
    """Tell the loader its epoch, as the Trainer's own loop does before it iterates."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    sampler = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def record_epoch(
    trainer: Trainer, loader: object, data_set: LoggedRows, epoch: int, writer: object, progress: object
) -> None:
    """Record one pass over the loader; the loader reads ahead, so ids are taken from the front."""
    taken = 0
    for number, batch in enumerate(loader):
        prepared = trainer._prepare_inputs(batch)  # noqa: SLF001 - what its training step does to a batch
        inputs = {name: value.tolist() for name, value in prepared.items()}
        extra = [name for name in ("attention_mask", "position_ids") if name in inputs]
        for index, input_ids in enumerate(inputs["input_ids"]):
            rest = {name: inputs[name][index] for name in extra}
            row = data_set.fetched[taken]
            writer.add(epoch, number, input_ids, inputs["labels"][index], [row], **rest)
            taken += 1
        progress(taken, len(data_set), "epoch %d: rows as they enter the model" % epoch)
