"""Every tool in both protocol eras: answers fit their schema, stay small, keep files' text in its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp import Client
from mcp.types import CallToolResult

from checks.verdict import Measurement, Problem, part_of
from plumbline_mcp.server import build_server
from plumbline_mcp.server.views import verdict_view
from tests.plumbline_mcp.sample_workspace import HOSTILE, Sample, make, write_run

pytestmark = pytest.mark.anyio
ERAS = ["auto", "legacy"]
MODERN = "2026-07-28"
LIMIT = 32_000
"""Bytes of one result: 8,000 tokens of 4 bytes."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make(tmp_path_factory.mktemp("sample"))


def calls(sample: Sample) -> dict[str, list[dict[str, Any]]]:
    """Good calls of every tool that is no check."""
    return {
        "scan_status": [{}],
        "check_list": [{}],
        "version_show": [{}],
        "verdict_list": [{}, {"check": "data"}, {"outcome": "fail"}],
        "verdict_show": [{"verdict_id": sample.verdict}, {"verdict_id": sample.failing, "part": "labels"}],
        "run_list": [{}, {"state": "sealed"}],
        "run_show": [{"run_id": sample.run}],
        "job_list": [{}],
        "job_status": [{"run_id": sample.run}],
        "job_logs": [{"run_id": sample.run}, {"run_id": sample.run, "offset": 0}],
        "job_cancel": [{"run_id": sample.run}, {"run_id": sample.run, "grace_s": 1}],
        "manifest_read": [{"run_id": sample.run}, {"run_id": sample.run, "prefix": "records/"}],
        "environment_read": [{"run_id": sample.run}, {"run_id": sample.run, "contains": "package-44"}],
        "rows_read": [{"rows": str(sample.dump), "count": 20}, {"rows": sample.run, "token": 3, "window": 1}],
        "tensors_read": [
            {"path": str(sample.checkpoint)},
            {"path": str(sample.checkpoint), "tensor": "counts"},
            {"path": str(sample.checkpoint), "norms": True},
        ],
        "steps_read": [{"run": sample.run}, {"run": sample.run, "rank": 0}],
        "approval_list": [{}, {"state": "pending"}],
        "finding_list": [{}],
    }


PLAYED_ELSEWHERE = {
    *("task_draft", "plan_draft", "job_start", "approval_wait", "approval_withdraw"),
    *("finding_propose", "finding_show", "finding_recompute", "finding_confirm"),
    *("proposal_add", "proposal_judge"),
}
"""What needs a target or a finding: test_plan_tools and the tests of findings hold those to the same."""


async def called(sample: Sample, tool: str, arguments: dict[str, Any], mode: str = "auto") -> CallToolResult:
    async with Client(build_server(sample.home), mode=mode) as client:
        return await client.call_tool(tool, arguments)


async def answered(sample: Sample, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await called(sample, tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


@pytest.mark.parametrize("mode", ERAS)
async def test_every_tool_answers_as_its_schema_says_and_stays_small(sample: Sample, mode: str) -> None:
    async with Client(build_server(sample.home), mode=mode) as client:
        assert (client.protocol_version == MODERN) == (mode == "auto")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        told = {name for name in tools if not name.startswith("check_")} | {"check_list"}
        assert told == set(calls(sample)) | PLAYED_ELSEWHERE
        for name, arguments in ((name, one) for name, many in calls(sample).items() for one in many):
            result = await client.call_tool(name, arguments)
            assert not result.is_error, (name, result.content)
            jsonschema.validate(result.structured_content, tools[name].output_schema or {})
            text = result.content[0]
            assert text.type == "text"
            assert json.loads(text.text) == result.structured_content
            assert len(text.text.encode()) < LIMIT, name


def leaves(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*names, name))
            yield (*names, "key of"), name
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, names)
    elif isinstance(value, str):
        yield names, value


async def test_text_from_files_stands_only_in_untrusted_fields_and_is_escaped(sample: Sample) -> None:
    met = set()
    many = [(name, one) for name, many in calls(sample).items() for one in many]
    for name, arguments in [*many, ("tensors_read", {"path": str(sample.checkpoint), "tensor": HOSTILE})]:
        answer = await answered(sample, name, arguments)
        for names, text in leaves(answer):
            assert not {"\x1b", "\x07", "\u202e"} & set(text), (name, names)
            if "ATTACK" in text:
                assert any(part.startswith("untrusted_") for part in names), (name, names)
                met.add(name)
    records = {"environment_read", "tensors_read", "steps_read", "job_logs"}
    assert met == {"run_list", "run_show", "verdict_list", "verdict_show", *records}


async def test_a_long_verdict_is_given_in_pages_that_hold_each_problem_once(sample: Sample) -> None:
    rows: list[int] = []
    arguments: dict[str, Any] = {"verdict_id": sample.failing}
    for _ in range(100):
        answer = await answered(sample, "verdict_show", arguments)
        assert len(json.dumps(answer).encode()) < LIMIT
        rows += [int(one["untrusted_place"].split("row ")[1].split(",")[0]) for one in answer["problems"]]
        assert answer["total"] == 400
        if not answer["truncated"]:
            assert answer["cursor"] is None
            break
        assert f'verdict_show(verdict_id="{sample.failing}", cursor=<cursor>)' in answer["next"]
        arguments["cursor"] = answer["cursor"]
    assert "cursor" in arguments
    assert rows == list(range(400))


@pytest.mark.parametrize(
    ("tool", "arguments", "field", "total"),
    [
        ("manifest_read", {"run_id": "rows-0001"}, "files", 610),
        ("environment_read", {"run_id": "rows-0001"}, "untrusted_distributions", 450),
        ("tensors_read", {"path": "checkpoint"}, "tensors", 402),
    ],
)
async def test_long_lists_come_in_pages_that_hold_everything_once(
    sample: Sample, tool: str, arguments: dict[str, Any], field: str, total: int
) -> None:
    arguments = arguments | ({"path": str(sample.checkpoint)} if "path" in arguments else {})
    found: list[str] = []
    cursor = None
    while True:
        answer = await answered(sample, tool, arguments | ({"cursor": cursor} if cursor else {}))
        assert len(json.dumps(answer).encode()) < LIMIT
        assert answer["total"] == total
        found += [json.dumps(one) for one in answer[field]]
        cursor = answer["cursor"]
        if not answer["truncated"]:
            break
    assert cursor is None
    assert len(found) == len(set(found)) == total


async def test_verdicts_are_listed_in_pages_newest_first(tmp_path: Path) -> None:
    sample = make(tmp_path)
    for _ in range(120):
        sample.workspace.add_verdict(sample.workspace.verdict(sample.verdict).verdict, {})
    found: list[str] = []
    arguments: dict[str, Any] = {"check": "image"}
    while True:
        answer = await answered(sample, "verdict_list", arguments)
        assert answer["total"] == 121
        found += [one["id"] for one in answer["verdicts"]]
        if not answer["truncated"]:
            break
        arguments["cursor"] = answer["cursor"]
    assert found == [f"image-{number:04d}" for number in range(121, 0, -1)]


async def test_rows_are_shown_in_spans_with_labels_and_single_tokens(sample: Sample) -> None:
    answer = await answered(sample, "rows_read", {"rows": sample.run, "first": 1, "token": 3, "window": 1})
    assert (answer["total"], answer["kind"]) == (3, "run folder")
    (row,) = answer["rows"]
    assert (row["sequence"], row["workload_rows"], row["tokens"], row["supervised"]) == (1, [1], 5, 2)
    assert [(s["first"], s["end"], s["supervised"]) for s in row["spans"]] == [(0, 3, False), (3, 5, True)]
    assert [(one["token"], one["id"], one["label"]) for one in row["window"]] == [
        (2, 2, -100),
        (3, 3, 3),
        (4, 4, 4),
    ]
    assert answer["next"] == "rows_read(..., first=2, count=1)"


async def test_values_of_a_tensor_are_exact(sample: Sample) -> None:
    counts = await answered(sample, "tensors_read", {"path": str(sample.checkpoint), "tensor": "counts"})
    assert counts["values"] == [2**62 + 1, -5]
    odd = await answered(sample, "tensors_read", {"path": str(sample.checkpoint), "tensor": HOSTILE})
    assert [str(value) for value in odd["values"]] == ["1.5", "nan", "inf", "-0.0"]
    arguments = {"path": str(sample.checkpoint), "tensor": "layers.7.weight", "first": 1, "count": 2}
    exported = await answered(sample, "tensors_read", {"path": sample.run, "tensor": "exported"})
    assert exported["values"] == [1, 2]
    part = await answered(sample, "tensors_read", arguments)
    assert (part["values"], part["first"], part["truncated"]) == ([7.0, 7.0], 1, True)
    assert part["tensors"][0]["shape"] == [2, 2]


async def test_the_environment_a_rank_recorded_is_read(sample: Sample) -> None:
    answer = await answered(sample, "environment_read", {"run_id": sample.run, "contains": "package-44"})
    assert answer["untrusted_distributions"][:2] == ["package-440==1.440", "package-441==1.441"]
    assert answer["total"] == 11
    assert answer["untrusted_facts"]["interpreter.version"] == "3.11.7"
    assert answer["untrusted_facts"]["stand_ins"] == '["CPU"]'


async def test_status_names_the_failing_verdict_as_the_one_next_call(sample: Sample) -> None:
    status = await answered(sample, "scan_status", {})
    assert status["workspace"] == str(sample.home)
    assert status["runs"] == 1
    standing = {one["check"]: (one["verdicts"], one["latest"], one["outcome"]) for one in status["checks"]}
    assert standing["data"] == (1, sample.failing, "fail")
    assert status["next"] == f'verdict_show(verdict_id="{sample.failing}")'
    assert "advisory" in status["trust"]


async def test_status_of_an_empty_workspace_begins_with_the_list_of_checks(tmp_path: Path) -> None:
    async with Client(build_server(tmp_path / "home")) as client:
        status = (await client.call_tool("scan_status", {})).structured_content
    assert status is not None
    assert status["next"].startswith("check_list()")
    assert not any(one["verdicts"] for one in status["checks"])


async def test_a_run_shows_its_log_its_exit_and_links_with_digests(sample: Sample) -> None:
    result = await called(sample, "run_show", {"run_id": sample.run})
    view = result.structured_content or {}
    ended = {"rank": 0, "clean": True, "code": 0, "signal": None, "timed_out": False, "stopped": False}
    assert view["exits"] == [ended]
    assert view["untrusted_log_tail"].startswith("first line\nATTACK\\x1b]52")
    links = [one for one in result.content if one.type == "resource_link"]
    assert links
    assert links[0].uri == f"plumbline://runs/{sample.run}/files/exit/rank-00000.json"
    assert "sha256" in (links[0].description or "")
    assert links[0].size == len('{"rank": 0, "code": 0}')


async def test_answers_stay_small_whatever_a_record_holds(tmp_path: Path) -> None:
    sample = make(tmp_path)
    wide = "漢" * 500
    many = {f"{wide}{number}": wide for number in range(300)}
    measured = tuple(Measurement(name=f"{wide}{n}", value=wide, bound=wide) for n in range(30))
    parts = tuple(
        part_of(f"part {n}", [Problem(code="x", message=wide)], measurements=measured) for n in range(40)
    )
    verdict = sample.workspace.verdict(sample.failing).verdict.model_copy(
        update={"parts": parts, "target": many, "settings": many, "stand_ins": (wide,) * 300, "reason": wide}
    )
    wide_id = sample.workspace.add_verdict(verdict, {}).id
    job = sample.workspace.run(sample.run).job
    for number in range(60):
        more = {"run_id": f"wide-{number:04d}", "framework": wide, "settings": many, "inputs": many}
        sample.workspace.add_run(job.model_copy(update=more | {"target": many, "plants": (wide,) * 300}))
    run = write_run(sample.workspace, {"variables": many, "stand_ins": [wide] * 100})
    async with Client(build_server(sample.home)) as client:
        for tool, arguments in (
            ("verdict_show", {"verdict_id": wide_id}),
            ("verdict_list", {}),
            ("run_list", {}),
            ("run_show", {"run_id": "wide-0007"}),
            ("environment_read", {"run_id": run}),
        ):
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result.content
            assert len(json.dumps(result.structured_content, ensure_ascii=False).encode()) < LIMIT, tool
    assert verdict_view(verdict).problems
    assert verdict_view(verdict).untrusted_settings["(more)"].endswith("not shown")


@pytest.mark.parametrize("mode", ERAS)
async def test_status_goes_on_once_the_failing_verdict_was_shown(sample: Sample, mode: str) -> None:
    async with Client(build_server(sample.home), mode=mode) as client:
        await client.call_tool("verdict_show", {"verdict_id": sample.failing})
        status = (await client.call_tool("scan_status", {})).structured_content
    assert status is not None
    assert sample.failing not in status["next"]


async def test_steps_are_given_in_pages_with_their_totals(sample: Sample) -> None:
    arguments: dict[str, Any] = {"run": sample.run}
    steps: list[dict[str, Any]] = []
    while True:
        answer = await answered(sample, "steps_read", arguments)
        assert (answer["total"], answer["ranks"], answer["rank"]) == (80, 1, 0)
        steps += answer["steps"]
        if not answer["truncated"]:
            break
        arguments = {"run": sample.run, "cursor": answer["cursor"]}
    assert [step["step"] for step in steps] == list(range(1, 81))
    first = steps[0]
    assert (first["gradient_norm_raw"], first["gradient_norm_used"], first["clip_returned"]) == (
        5.0,
        1.0,
        5.0,
    )
    assert (first["micro_batches_total"], first["groups_total"]) == (70, 40)
    assert first["groups"][0]["learning_rate"] == 1e-3
    assert first["untrusted_logged"]["grad_norm"] == "nan"
    assert first["tensors"] is None
    assert steps[1]["tensors"] == "records/rank-00000/step-000002.safetensors"


async def test_the_call_that_steps_read_names_lists_the_tensors_of_a_step(sample: Sample) -> None:
    answer = await answered(sample, "steps_read", {"run": sample.run})
    assert answer["folder"] == f"{sample.home}/runs/{sample.run}"
    path = f"{answer['folder']}/{answer['steps'][1]['tensors']}"
    assert answer["next"] == f'tensors_read(path="{path}", norms=true)'
    named = await answered(sample, "tensors_read", {"path": path, "norms": True})
    assert {tensor["untrusted_name"] for tensor in named["tensors"]} == {"grad.used.w", "micro.0.labels"}


async def test_the_tensors_of_a_step_are_listed_with_their_norms(sample: Sample) -> None:
    path = f"{sample.home}/runs/{sample.run}/records/rank-00000/step-000002.safetensors"
    answer = await answered(sample, "tensors_read", {"path": path, "norms": True})
    found = {tensor["untrusted_name"]: tensor["norm"] for tensor in answer["tensors"]}
    assert found == {"grad.used.w": 5.0, "micro.0.labels": None}
    silent = await answered(sample, "tensors_read", {"path": path})
    assert {tensor["norm"] for tensor in silent["tensors"]} == {None}
