"""The embedded workload: the same bytes each time, and every kind of turn."""

import json
from pathlib import Path

from plumbline_mcp.scan.example_workload import WORKLOAD_ROWS, conversations, write_workload


def test_two_writes_have_the_same_bytes_and_another_seed_has_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert write_workload(tmp_path / name, seed=seed) == WORKLOAD_ROWS
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second != other
    assert len(first.splitlines()) == WORKLOAD_ROWS


def test_the_workload_has_every_kind_of_turn() -> None:
    rows = list(conversations())
    turns = [turn for row in rows for turn in row["messages"]]
    assert {turn["role"] for turn in turns} == {"system", "user", "assistant", "tool"}
    assert any(turn.get("reasoning_content") for turn in turns)
    assert any(len(turn.get("tool_calls", [])) == 2 for turn in turns)
    pairs = [pair for row in rows for pair in zip(row["messages"], row["messages"][1:], strict=False)]
    assert any(first["role"] == second["role"] == "tool" for first, second in pairs)
    assert sum(1 for row in rows if sum(turn["role"] == "user" for turn in row["messages"]) > 1) > 50
    assert {len(character.encode()) for row in rows for character in json.dumps(row, ensure_ascii=False)} == {
        1,
        2,
        3,
        4,
    }
    lengths = sorted(len(json.dumps(row["messages"])) for row in rows)
    assert lengths[-1] > 20 * lengths[0]


def test_each_call_is_answered_and_tools_are_declared() -> None:
    for row in conversations():
        called = [call["id"] for turn in row["messages"] for call in turn.get("tool_calls", [])]
        answered = [turn["tool_call_id"] for turn in row["messages"] if turn["role"] == "tool"]
        assert called == answered
        assert bool(called) == ("tools" in row)
