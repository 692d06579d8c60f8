"""A tiny release for tests: byte-level BPE, templates with a begin token, stop ids; and an own labeller."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<pad>", "<|stop|>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GLM_LIKE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
DROPS_REASONING = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if m.reasoning_content and loop.last %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TEXTS = [f"Question {n}: how many apples are {n} plus {n + 3}? Say it." for n in range(12)]
WORKLOAD: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": text}, {"role": "assistant", "content": f"They are {2 * n + 3} apples."}]
    if n % 2
    else [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": text},
        {"role": "assistant", "content": f"{2 * n + 3}."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": f"Yes, {2 * n + 3} – sure."},
    ]
    for n, text in enumerate(TEXTS)
]


def tokenizer() -> Tokenizer:
    """A byte-level BPE trained on the texts, with the control tokens added."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROL])
    return made


def write_release(
    folder: Path,
    template: str | None = TEMPLATE,
    stops: Any = "<|end|>",
    pad: str = "<pad>",
) -> Path:
    """The release's files; ``stops``: a token, a list of them, or None for no generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    configuration: dict[str, Any] = {
        "bos_token": "<s>",
        "eos_token": {"content": "<|end|>"},
        "pad_token": pad,
    }
    if template is not None:
        configuration["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
    if stops is not None:
        ids = [made.token_to_id(text) for text in ([stops] if isinstance(stops, str) else stops)]
        value = ids[0] if isinstance(stops, str) else ids
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}), encoding="utf-8")
    return folder


def write_workload(path: Path, chats: list[list[dict[str, Any]]] | None = None) -> Path:
    """One conversation a line."""
    lines = [json.dumps({"messages": chat}) for chat in (WORKLOAD if chats is None else chats)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def row(chat: list[dict[str, Any]], supervise: str = "all") -> dict[str, list[int]]:
    """A right row, written down by hand: pieces tokenised one by one, replies with their end supervised."""
    made = tokenizer()
    ids, labels = [made.token_to_id("<s>")], [-100]

    def add(text: str, on: bool) -> None:
        new = made.encode(text, add_special_tokens=False).ids
        ids.extend(new)
        labels.extend(new if on else [-100] * len(new))

    for number, message in enumerate(chat):
        on = message["role"] == "assistant" and (supervise == "all" or number == len(chat) - 1)
        add(f"<|{message['role']}|>", on=False)
        # "\n" and the text are one piece for the tokenizer; a reply begins where the prompt's "\n" ends.
        add("\n", on=False)
        add(message["content"], on=on)
        add("<|end|>", on=on)
        add("\n", on=False)
    return {"input_ids": ids, "labels": labels}


def rows(supervise: str = "all") -> list[dict[str, Any]]:
    """The right rows of the workload."""
    return [row(chat, supervise) for chat in WORKLOAD]


def write_rows(path: Path, dump: list[dict[str, Any]]) -> Path:
    """A JSONL dump."""
    path.write_text("".join(json.dumps(each) + "\n" for each in dump), encoding="utf-8")
    return path


def write_record(path: Path, dump: list[dict[str, Any]], epoch: int = 1, **metadata: str) -> Path:
    """The run record's safetensors layout. Rows may hold ``documents``: (row id, length) of each."""
    documents = [each.get("documents", [(n, len(each["input_ids"]))]) for n, each in enumerate(dump)]
    flat = [document for inside in documents for document in inside]
    tensors = {
        "input_ids": np.concatenate([each["input_ids"] for each in dump]).astype(np.int32),
        "labels": np.concatenate([each["labels"] for each in dump]).astype(np.int32),
        "offsets": np.cumsum([0, *(len(each["input_ids"]) for each in dump)]).astype(np.int64),
        "document_offsets": np.cumsum([0, *(length for _, length in flat)]).astype(np.int64),
        "row_ids": np.array([number for number, _ in flat], dtype=np.int32),
        "epochs": np.full(len(dump), epoch, dtype=np.int32),
        "batches": np.arange(len(dump), dtype=np.int32),
    }
    for name, dtype in (
        ("attention_mask", np.uint8),
        ("position_ids", np.int32),
        ("loss_weights", np.float32),
    ):
        if name in dump[0]:
            tensors[name] = np.concatenate([each[name] for each in dump]).astype(dtype)
    about = {"format": "plumbline-rows", "version": "1", "rank": "0", "world_size": "1", "labels": "aligned"}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata=about | metadata)
    return path
