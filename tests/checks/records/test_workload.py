"""Workload layouts: what each becomes, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadInput, NotEvaluated
from checks.records.workload import read_workload

CHAT = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


def written(tmp_path: Path, *rows: Any, array: bool = False) -> Path:
    path = tmp_path / "workload.jsonl"
    path.write_text(json.dumps(list(rows)) if array else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
        {"prompt": "Q", "completion": "A"},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"question": "Q", "answer": "A"},
    ],
)
@pytest.mark.parametrize("array", [False, True])
def test_common_layouts_are_found(tmp_path: Path, row: dict[str, Any], array: bool) -> None:
    assert read_workload(written(tmp_path, row, array=array))[0].messages == CHAT


def test_columns_name_another_layout(tmp_path: Path) -> None:
    path = written(tmp_path, {"q": "Q", "a": "A", "s": "S"})
    assert read_workload(path, {"prompt": "q", "response": "a"})[0].messages == CHAT
    first = read_workload(path, {"prompt": "q", "completion": "a", "system": "s"})[0].messages[0]
    assert first == {"role": "system", "content": "S"}


def test_nulls_go_and_reasoning_has_every_name(tmp_path: Path) -> None:
    row = {"messages": [CHAT[0], {"role": "assistant", "content": "A", "reasoning": "R", "tool_calls": None}]}
    message = read_workload(written(tmp_path, row))[0].messages[1]
    assert "tool_calls" not in message
    assert (message["reasoning_content"], message["thinking"]) == ("R", "R")


def test_tools_may_be_text_and_may_come_late(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    path = written(tmp_path, {"messages": CHAT}, {"messages": CHAT, "tools": json.dumps(tools)})
    assert [row.tools for row in read_workload(path)] == [None, tools]


@pytest.mark.parametrize(
    ("row", "columns", "words"),
    [
        ({"text": "Q"}, {}, "columns of"),
        ({"messages": CHAT}, {"chat": "messages"}, "unknown column role 'chat'"),
        ({"messages": CHAT}, {"prompt": "messages"}, "neither messages nor"),
        ({"messages": CHAT}, {"messages": "dialog"}, "no column 'dialog'"),
        ({"messages": []}, {}, "has no messages"),
        ({"messages": ["Q"]}, {}, "message 0 is no object but str"),
        ({"messages": [{"content": "Q"}]}, {}, "message 0 has no role"),
        ({"conversations": [{"from": "alien", "value": "Q"}]}, {}, "unknown speaker 'alien'"),
        ({"messages": CHAT, "tools": 3}, {}, "tools are no list but int"),
        ([1], {}, "is no JSON object but list"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    tmp_path: Path, row: Any, columns: dict[str, str], words: str
) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_text(
        " " + json.dumps(row) if isinstance(row, dict) else "{}\n" + json.dumps(row), encoding="utf-8"
    )
    with pytest.raises(BadInput, match=words):
        read_workload(path, columns)


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"messages": [', "line 1 is not valid JSON"), ('{"prompt": NaN}', "NaN"), ("[" * 99999, "JSON")],
)
def test_broken_json_names_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        read_workload(path)


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(NotEvaluated, match="no rows"):
        read_workload(tmp_path / "empty.jsonl")
    with pytest.raises(BadInput, match="cannot read"):
        read_workload(tmp_path / "absent.jsonl")
    with pytest.raises(BadInput, match="no file"):
        read_workload(tmp_path)
