"""The surface as an agent sees it: snapshots, names, annotations, size, and what no tool may take."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import checks
from checks.verdict import Outcome
from plumbline_mcp.server.roles import Role
from plumbline_mcp.server.views import ProblemView, VerdictView
from tests.snapshots import seen as snapshots

VISIBLE_LIMIT = 22_500 + 790
"""Bytes of names, descriptions and input schemas (790 are check_build's): about 5,800 tokens in all."""
LIST_LIMIT = 55_500 + 1_385
"""Bytes of the whole `tools/list`, output schemas included, 1,385 for check_build: about 14,000 tokens."""
INSTRUCTION_LINES = 10

EXPECTED = {
    *("scan_status", "check_list", "verdict_list", "verdict_show", "version_show"),
    *("run_list", "run_show", "manifest_read", "environment_read", "rows_read", "tensors_read"),
    "steps_read",
    *("job_list", "job_status", "job_logs", "job_cancel", "job_start"),
    *("task_draft", "plan_draft", "approval_wait", "approval_list", "approval_withdraw"),
    *("finding_propose", "finding_list", "finding_show", "finding_recompute", "finding_confirm"),
    *("proposal_add", "proposal_judge"),
}
ONCE_MORE = {"approval_withdraw", "proposal_judge"}
"""What stores something and says another thing when it is called a second time."""
AGAIN = {
    *("task_draft", "plan_draft", "job_start", "job_cancel"),
    *("finding_propose", "finding_recompute", "finding_confirm", "proposal_add"),
}
"""What stores or ends something, and a second call changes nothing more."""


@pytest.mark.parametrize("role", snapshots.FOLDERS)
def test_each_tool_looks_as_its_snapshot(role: Role) -> None:
    seen = snapshots.seen(role)
    kept = {path.name: path.read_text() for path in snapshots.FOLDERS[role].glob("*.json")}
    stale = sorted(name for name in seen.keys() | kept.keys() if seen.get(name) != kept.get(name))
    assert not stale, f"changed: {stale}; run `python -m tests.snapshots` and review the diff"


def listed() -> dict[str, dict[str, Any]]:
    found = {name: json.loads(text) for name, text in snapshots.seen().items()}
    return {name.removesuffix(".json"): tool for name, tool in found.items() if name != "server.json"}


def test_there_is_a_tool_for_each_check_and_each_record() -> None:
    assert set(listed()) == EXPECTED | {f"check_{name}" for name in checks.discover()}


def test_what_every_conversation_carries_stays_small() -> None:
    tools = listed().values()
    shown = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in tools]
    assert len(json.dumps(shown, ensure_ascii=False).encode()) < VISIBLE_LIMIT
    assert len(json.dumps(list(tools), ensure_ascii=False).encode()) < LIST_LIMIT
    server = json.loads(snapshots.seen()["server.json"])
    assert len(server["instructions"]) <= INSTRUCTION_LINES


def test_names_are_noun_then_verb_and_every_parameter_of_a_check_is_described() -> None:
    for name, tool in listed().items():
        assert re.fullmatch(r"[a-z]+_[a-z]+(_[a-z]+)?", name)
        assert len(name) <= 64
        assert tool["title"]
        assert tool["description"]
        schema = tool["inputSchema"]
        assert isinstance(schema, dict)
        assert schema["additionalProperties"] is False
        if name.startswith("check_") and name != "check_list":
            assert all(parameter.get("description") for parameter in schema["properties"].values()), name


def test_annotations_are_truthful() -> None:
    for name, tool in listed().items():
        stores = (name.startswith("check_") and name != "check_list") or name in ONCE_MORE
        assert tool["annotations"] == {
            "readOnlyHint": not stores and name not in AGAIN,
            "destructiveHint": name in ("job_cancel", "approval_withdraw"),
            "idempotentHint": not stores,
            "openWorldHint": False,
        }, name


def test_no_tool_takes_a_bound_a_tolerance_or_a_skip_list() -> None:
    banned = re.compile(r"tol|bound|thresh|epsilon|\beps\b|skip|ignore|exclude|allow|atol|rtol|limit|strict")
    for name, tool in listed().items():
        schema = tool["inputSchema"]
        assert isinstance(schema, dict)
        assert not [one for one in schema["properties"] if banned.search(one)], name


def test_every_verdict_has_one_schema_that_is_told_in_full_once() -> None:
    tools = listed()
    of_checks = {name for name in tools if name.startswith("check_") and name != "check_list"}
    (outline,) = {json.dumps(tools[name]["outputSchema"]) for name in of_checks}
    whole: dict[str, Any] = tools["verdict_show"]["outputSchema"]
    assert whole["properties"].keys() == VerdictView.model_fields.keys()
    assert whole["properties"]["problems"]["items"]["properties"].keys() == ProblemView.model_fields.keys()
    told = json.loads(outline)["properties"]
    assert {"outcome", "parts", "problems", "next_step"} <= told.keys() <= whole["properties"].keys()
    assert told["outcome"]["enum"] == [*Outcome]
    assert told["cursor"]["type"] == ["string", "null"]


HEAVY = ("torch", "transformers", "pyarrow", "matplotlib", "sqlite_utils", "datasets")
IMPORTS = """
import json, sys, anyio
from mcp import Client
from plumbline_mcp.server import build_server

async def listed():
    async with Client(build_server()) as client:
        return len((await client.list_tools()).tools)

print(json.dumps([anyio.run(listed), sorted(sys.modules)]))
"""


def test_the_server_lists_its_tools_without_heavy_libraries(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-I", "-c", IMPORTS], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    tools, modules = json.loads(answer.stdout)
    assert tools >= len(EXPECTED)
    assert not {module for module in modules if module.split(".")[0] in HEAVY}
    assert list(tmp_path.iterdir()) == []  # nothing is made before a tool is called
