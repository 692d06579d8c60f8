"""A workload's conversations as plain messages, from the common layouts of JSON and JSON lines."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline_mcp.findings.recompute.reading import MAX_LINE_BYTES, Cannot

Message = dict[str, Any]
_MAX_BYTES = 2**31
_CHATS = ("messages", "conversations", "conversation", "chat")
_PAIRS = (
    ("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("query", "answer"),
    ("query", "response"), ("instruction", "output"),
)  # fmt: skip
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
    "bard": "assistant", "assistant": "assistant", "model": "assistant", "system": "system", "tool": "tool",
    "function_response": "tool", "observation": "tool",
}  # fmt: skip
_USUAL = {
    "weight": 1,
    "train": 1,
    "training": 1,
    "loss": 1,
    "masked": 0,
    "train_detail": [],
    "training_detail": [],
}
"""What fields with which a message weighs itself in the loss say of a reply that weighs as others do."""
_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class Conversation:
    """One row of a workload."""

    index: int
    messages: list[Message]
    tools: list[Any] | None

    @property
    def is_weighed(self) -> bool:
        """Whether a message says of itself what it weighs in the loss, other than a reply does anyway."""
        return any(
            message[name] != usual if message["role"] == "assistant" else name.startswith("train")
            for message in self.messages
            for name, usual in _USUAL.items()
            if name in message
        )


def read_conversations(path: Path, columns: dict[str, str]) -> list[Conversation]:
    """Every conversation. Raises `Cannot`."""
    rows = _rows(path)
    if not rows:
        raise Cannot("the workload has no rows")
    layout = {"tools": "tools", **_renamed(columns)} if columns else _layout(rows[0])
    return [_conversation(index, row, layout) for index, row in enumerate(rows)]


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise Cannot(f"the workload is no file of at most {_MAX_BYTES:,} bytes")
    raw = path.read_bytes()
    try:
        if raw.lstrip()[:1] == b"[":
            values = json.loads(raw)
        else:
            lines = [line for line in raw.split(b"\n") if line.strip()]
            if any(len(line) > MAX_LINE_BYTES for line in lines):
                raise Cannot("a line of the workload is too long")
            values = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Cannot(f"the workload is no JSON: {str(error)[:200]}") from error
    if not all(isinstance(value, dict) for value in values):
        raise Cannot("a row of the workload is no object")
    return list(values)


def _renamed(columns: dict[str, str]) -> dict[str, str]:
    return {"completion" if role == "response" else role: column for role, column in columns.items()}


def _layout(row: dict[str, Any]) -> dict[str, str]:
    chat = next((name for name in _CHATS if isinstance(row.get(name), list)), None)
    if chat:
        return {"messages": chat, "system": "system", "tools": "tools"}
    pair = next(((p, c) for p, c in _PAIRS if p in row and c in row), None)
    if pair is None:
        raise Cannot("the columns of the workload are not known")
    return {"prompt": pair[0], "completion": pair[1], "system": "system", "tools": "tools"}


def _conversation(index: int, row: dict[str, Any], layout: dict[str, str]) -> Conversation:
    if "messages" in layout:
        messages = _messages(row.get(layout["messages"]))
    else:
        sides = ((layout["prompt"], "user"), (layout["completion"], "assistant"))
        messages = [message for column, role in sides for message in _side(row.get(column), role)]
    system = row.get(layout.get("system", ""))
    if isinstance(system, str) and system and (not messages or messages[0].get("role") != "system"):
        messages = [{"role": "system", "content": system}, *messages]
    tools = row.get(layout.get("tools", ""))
    if isinstance(tools, str):
        tools = json.loads(tools) if tools.strip() else None
    if not messages or not isinstance(tools, list | None):
        raise Cannot(f"row {index} of the workload holds no messages, or tools that are no list")
    return Conversation(index, messages, tools or None)


def _side(value: Any, role: str) -> list[Message]:
    return [{"role": role, "content": value}] if isinstance(value, str) else _messages(value)


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise Cannot("the messages of a row are no list of objects")
    return [_message(each) for each in value]


def _message(entry: Message) -> Message:
    if "role" not in entry and {"from", "value"} <= entry.keys():
        kept = {name: entry[name] for name in _USUAL if name in entry}
        entry = {"role": _SPEAKERS.get(str(entry["from"]).lower()), "content": entry["value"], **kept}
    if not isinstance(entry.get("role"), str):
        raise Cannot("a message of the workload has no known role")
    found = {key: value for key, value in entry.items() if value is not None}
    thought = next((found[name] for name in _REASONING if name in found), None)
    return found if thought is None else {"thinking": thought, **found, "reasoning_content": thought}
