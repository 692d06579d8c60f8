"""Reads a workload: conversations from JSONL or JSON in the common layouts, as plain messages.

Layouts, found from the first row unless ``columns`` names them: ``messages`` or ``conversations`` (OpenAI
``role`` and ``content``, or ShareGPT ``from`` and ``value``), ``prompt`` and ``completion`` (text or
messages), ``question`` and ``answer``, ``instruction`` (``input``) ``output``.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.errors import BadInput, NotEvaluated
from checks.records.turn_marks import MARKS
from checks.rules import MAX_LINE_BYTES, MAX_ROWS, MAX_WORKLOAD_BYTES

Message = dict[str, Any]

COLUMN_ROLES = ("messages", "prompt", "completion", "response", "system", "tools")
"""What ``columns`` may name: which column of a row holds what."""

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_CHAT_COLUMNS = ("messages", "conversations", "conversation", "chat")
_PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("query", "answer"),
    ("query", "response"),
    ("instruction", "output"),
)
_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class Conversation:
    """One row of a workload: its messages as plain JSON data and the tools offered in it."""

    index: int
    messages: list[Message]
    tools: list[Any] | None = None


def read_workload(path: Path, columns: Mapping[str, str] | None = None) -> list[Conversation]:
    """Every conversation of a workload. Raises `BadInput` (unusable file or columns), `NotEvaluated` (no
    rows).
    """
    for role in columns or {}:
        if role not in COLUMN_ROLES:
            raise BadInput(f"unknown column role {role!r}", f"use one of {', '.join(COLUMN_ROLES)}")
    rows = list(_rows(path))
    if not rows:
        raise NotEvaluated(f"the workload {path} has no rows", "name the file that the training reads")
    layout = _named(columns) if columns else _layout(path, rows[0][1])
    return [_conversation(index, row, layout, f"{path}, {where}") for index, (where, row) in enumerate(rows)]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(f"cannot read the workload {path}: {error.strerror}") from error
    if not path.is_file():
        raise BadInput(f"the workload {path} is no file", "name a JSONL or JSON file")
    if size > MAX_WORKLOAD_BYTES:
        raise BadInput(
            f"the workload {path} has {size} bytes (limit {MAX_WORKLOAD_BYTES})", "give a part of it"
        )
    with path.open("rb") as file:
        start = file.read(4096).lstrip()[:1]
    source = _json_array(path) if start == b"[" else read_json_lines(path)
    for count, (where, row) in enumerate(source):
        if count >= MAX_ROWS:
            raise BadInput(f"{path} has more than {MAX_ROWS} rows", "give a part of it")
        if not isinstance(row, dict):
            raise BadInput(f"{path}, {where} is no JSON object but {type(row).__name__}")
        yield where, row


def _json_array(path: Path) -> Iterator[tuple[str, Any]]:
    value = parse_json(path.read_bytes(), str(path))
    return ((f"entry {number}", row) for number, row in enumerate(value))


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each non-empty line's value with ``line <n>`` (from 1). Raises `BadInput` at a line that is no JSON."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise BadInput(f"{path}, line {number} is longer than {MAX_LINE_BYTES} bytes")
            if line.strip():
                yield f"line {number}", parse_json(line, f"{path}, line {number}")


def parse_json(raw: bytes, where: str) -> Any:
    """Strict JSON: no NaN, no infinity, bounded depth. Raises `BadInput` naming the place."""
    try:
        return json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        cut = "" if raw.endswith(b"\n") else " (the file may be truncated)"
        raise BadInput(
            f"{where} is not valid JSON: {str(error)[:200]}{cut}", "repair or rewrite the file"
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _named(columns: Mapping[str, str]) -> dict[str, str]:
    layout = {"completion" if role == "response" else role: column for role, column in columns.items()}
    if not ({"messages"} <= set(layout) or {"prompt", "completion"} <= set(layout)):
        raise BadInput(
            f"columns name {', '.join(columns)}: neither messages nor prompt and completion",
            "for example --columns prompt=question,completion=answer",
        )
    return {"tools": "tools", **layout}


def _layout(path: Path, row: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    chat = next((name for name in _CHAT_COLUMNS if isinstance(row.get(name), list)), None)
    if chat:
        found["messages"] = chat
    else:
        pair = next(((p, c) for p, c in _PAIRS if p in row and c in row), None)
        if pair is None:
            raise BadInput(
                f"the columns of {path} are not known: {', '.join(map(repr, list(row)[:12]))}",
                "name them, for example --columns prompt=question,completion=answer",
            )
        found["prompt"], found["completion"] = pair
    found.update(system="system", tools="tools")  # a later row may have what the first one lacks
    return found


def _conversation(index: int, row: dict[str, Any], layout: Mapping[str, str], where: str) -> Conversation:
    missing = [
        column for role, column in layout.items() if column not in row and role not in ("system", "tools")
    ]
    if missing:
        raise BadInput(
            f"{where} has no column {missing[0]!r}", f"its columns are {', '.join(list(row)[:12])}"
        )
    if "messages" in layout:
        messages = _messages(row[layout["messages"]], where)
    else:
        prompt, completion = row[layout["prompt"]], row[layout["completion"]]
        messages = _side(prompt, "user", where) + _side(completion, "assistant", where)
    system = row.get(layout.get("system", ""))
    if isinstance(system, str) and system and (not messages or messages[0].get("role") != "system"):
        messages = [{"role": "system", "content": system}, *messages]
    if not messages:
        raise BadInput(f"{where} has no messages")
    return Conversation(index, messages, _tools(row.get(layout.get("tools", "")), where))


def _side(value: Any, role: str, where: str) -> list[Message]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _messages(value, where)


def _tools(value: Any, where: str) -> list[Any] | None:
    if isinstance(value, str):  # data sets keep tools as JSON text, because their columns must have one type
        value = parse_json(value.encode(), f"{where}, tools") if value.strip() else None
    if value is not None and not isinstance(value, list):
        raise BadInput(f"{where}: tools are no list but {type(value).__name__}")
    return value or None


def _messages(value: Any, where: str) -> list[Message]:
    if not isinstance(value, list):
        raise BadInput(f"{where}: messages are no list but {type(value).__name__}")
    return [_message(entry, f"{where}, message {number}") for number, entry in enumerate(value)]


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, dict):
        raise BadInput(f"{where} is no object but {type(entry).__name__}")
    if "role" not in entry and {"from", "value"} <= entry.keys():
        role = _SHAREGPT_ROLES.get(str(entry["from"]).lower())
        if role is None:
            raise BadInput(
                f"{where}: unknown speaker {entry['from']!r}", f"known: {', '.join(_SHAREGPT_ROLES)}"
            )
        marks = {name: entry[name] for name in MARKS & entry.keys()}
        entry = {"role": role, "content": entry["value"], **marks}
    if not isinstance(entry.get("role"), str):
        raise BadInput(f"{where} has no role")
    return _named_reasoning({key: item for key, item in entry.items() if item is not None})


def _named_reasoning(message: Message) -> Message:
    """Reasoning under each name that templates read (as transformers 5.24 does), whichever name the row
    uses.
    """
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
