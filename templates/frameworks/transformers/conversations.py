"""Reads a workload as conversations, whatever its columns are called."""

import json
from pathlib import Path

SPEAKERS = {"human": "user", "gpt": "assistant"}
CHATS = ("messages", "conversations")
PAIRS = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("instruction", "output"))


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
