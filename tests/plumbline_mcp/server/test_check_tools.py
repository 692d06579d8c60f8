"""The generated check tools on real files, in both eras: verdicts arrive, are stored, and are shown again."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from mcp import Client
from transformers import AutoModelForCausalLM, Mxfp4Config

import checks
from checks.records.runs import Job
from checks.verdict import Outcome, Verdict
from plumbline_mcp.scan.example_release import build
from plumbline_mcp.server import build_server
from plumbline_mcp.workspace import Workspace
from tests.checks import loaded_runs
from tests.checks.built_runs import built
from tests.checks.trained_runs import train_all
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded release, a copy without generation config, a workload, and rows that are not its rows."""
    folder = tmp_path_factory.mktemp("files")
    build({"model": str(folder / "release"), "workload": str(folder / "work.jsonl"), "rows": 6}, _quiet)
    shutil.copytree(folder / "release", folder / "export")
    (folder / "export" / "generation_config.json").unlink()
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]} for _ in range(6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_all(folder, {"not-clipped": {"fault": "not_clipped"}})
    load_with_swapped_experts(folder / "release", folder / "loaded")
    built(folder / "built", folder / "release", windows_left_out)
    return folder


def windows_left_out(model: Any) -> None:
    """Attention that sees everything where the release has a window."""
    model.model.layers[0].self_attn.sliding_window = None


def load_with_swapped_experts(release: Path, run: Path) -> None:
    """What transformers loads of the embedded release, two experts in each other's place."""
    how = Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(release, dtype="bfloat16", quantization_config=how)
    with torch.no_grad():
        down = model.model.layers[1].mlp.experts.down_proj
        down[[0, 3]] = down[[3, 0]]
    loaded_runs.recorded(run, model, dtype="bfloat16")


def _quiet(done: float, total: float | None, message: str) -> None:
    pass


def arguments(files: Path) -> dict[str, dict[str, Any]]:
    return {
        "data": {
            "model": str(files / "release"),
            "workload": str(files / "work.jsonl"),
            "rows": str(files / "rows.jsonl"),
            "date": "2026-01-31",
        },
        "export": {"original": str(files / "release"), "export": str(files / "export")},
        "image": {"python": sys.executable, "framework": "transformers"},
        "build": {"run": str(files / "built"), "model": str(files / "release")},
        "load": {"run": str(files / "loaded"), "model": str(files / "release")},
        "optimizer_step": {"run": str(files / "not-clipped")},
    }


@pytest.mark.parametrize("mode", ERAS)
async def test_every_check_judges_real_files_and_its_verdict_is_stored(
    files: Path, tmp_path: Path, mode: str
) -> None:
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    found = {}
    async with Client(build_server(tmp_path / "home", [Path(sys.executable)]), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name in checks.discover():
            given = arguments(files)[name]
            result = await client.call_tool(f"check_{name}", given, progress_callback=hear)
            assert not result.is_error, result.content
            view = result.structured_content or {}
            jsonschema.validate(view, tools[f"check_{name}"].output_schema or {})
            again = await client.call_tool("verdict_show", {"verdict_id": view["id"]})
            assert again.structured_content == view
            assert view["injected"]
            assert view["system_version"].startswith("0.")
            assert result.content[1].type == "resource_link"
            assert (await client.read_resource(str(result.content[1].uri))).contents
            found[name] = view
    for doing in (
        "comparing byte code with its source, file 200/",
        "rendering the workload with the release's template",
        "file 3 of 5: comparing tokenizer",
        "loading the export in transformers, ",
        f"planting fault 1 of {len(checks.discover()['export'].faults)}: a dropped tensor",
        "planting fault 8 of 8: a lost processor",
    ):
        assert any(doing in message for message in heard), (doing, heard)
    assert found["data"]["outcome"] == "fail"
    rows, model = json.dumps(str(files / "rows.jsonl")), json.dumps(str(files / "release"))
    assert found["data"]["next"] == f"rows_read(rows={rows}, model={model}, first=0, token=0)"
    assert found["export"]["outcome"] == "fail"
    assert found["export"]["next"] == "mend the first problem, then check_export with the same arguments"
    codes = {(one["part"], one["code"]) for one in found["export"]["problems"] if one["outcome"] == "fail"}
    assert codes == {("generation_config", "file-missing")}
    [window] = found["build"]["problems"]
    assert window["code"] == "value-differs"
    assert "sliding_window" in json.dumps(window)
    [swapped] = found["load"]["problems"]
    assert swapped["code"] == "permuted"
    assert "model.layers.1.mlp.experts.down_proj" in json.dumps(swapped)
    steps = {(one["part"], one["code"]) for one in found["optimizer_step"]["problems"]}
    assert ("clip", "not-clipped") in steps
    stored = Workspace.open(tmp_path / "home", create=False)
    assert stored.verdict("export-0001").inputs["original"] == str(files / "release")
    assert stored.verify() == []


@pytest.mark.parametrize("mode", ERAS)
async def test_only_interpreters_that_the_user_named_are_run(tmp_path: Path, mode: str) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho $@ >> {ran}\necho no python\n")
    program.chmod(0o755)
    given = {"python": str(program), "framework": "transformers"}
    async with Client(build_server(tmp_path / "home", [Path(sys.executable)]), mode=mode) as client:
        for other in (str(program), "/bin/rm", str(tmp_path / "venv/../python"), sys.executable + "/../rm"):
            result = await client.call_tool("check_image", given | {"python": other})
            assert result.is_error
            text = getattr(result.content[0], "text", "")
            assert "no interpreter that the user named" in text
            assert sys.executable in text
            assert "plumbline serve --python PATH" in text
        assert not ran.exists()
    async with Client(build_server(tmp_path / "home", [program]), mode=mode) as client:
        result = await client.call_tool("check_image", given)
        assert "does not answer as a Python" in getattr(result.content[0], "text", "")
    assert ran.read_text() == "--version\n"


async def test_an_interpreter_that_was_judged_or_built_needs_no_naming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.open(tmp_path / "home")
    judged, started = tmp_path / "judged/bin/python", tmp_path / "started/bin/python"
    workspace.add_verdict(
        Verdict(check="image", outcome=Outcome.FAIL, reason="x"), {"python": judged, "framework": "x"}
    )
    workspace.add_run(Job(run_id="rows-0001", procedure="rows", framework="x", interpreter=str(started)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built = tmp_path / "cache/plumbline/environments/0123/bin/python"
    torch = built.parent.parent / "lib/python3.11/site-packages/torch/__init__.py"
    torch.parent.mkdir(parents=True)
    torch.write_text("")
    (built.parent.parent / "complete.json").write_text("{}")
    async with Client(build_server(tmp_path / "home")) as client:
        for python in (judged, started, built):  # not refused, and there is nothing that could be started
            asked = {"python": str(python), "framework": "transformers"}
            result = await client.call_tool("check_image", asked)
            assert "is no interpreter that can be started" in getattr(result.content[0], "text", "")
        (built.parent.parent / "complete.json").unlink()
        asked = {"python": str(built), "framework": "transformers"}
        result = await client.call_tool("check_image", asked)
        assert "no interpreter that the user named" in getattr(result.content[0], "text", "")


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("check_export", {"original": "/nowhere", "export": "/nowhere"}, "/nowhere"),
        (
            "check_export",
            {"original": "/nowhere", "export": "/nowhere", "tolerance": 1},
            "has no argument tolerance",
        ),
        ("check_data", {"model": "/nowhere"}, "the argument workload is missing"),
        (
            "check_data",
            {"model": "/n", "workload": "/n", "rows": "/n", "max_length": 0},
            "takes a whole number of at least 1",
        ),
        ("check_image", {"python": "/nowhere/python", "framework": "transformers"}, "/nowhere/python"),
    ],
)
async def test_unusable_arguments_are_tool_errors_and_store_nothing(
    tmp_path: Path, tool: str, given: dict[str, Any], said: str
) -> None:
    async with Client(build_server(tmp_path / "home")) as client:
        result = await client.call_tool(tool, given)
        assert result.is_error, result.structured_content
        assert result.content[0].type == "text"
        assert said in result.content[0].text
        listed = await client.call_tool("verdict_list", {})
    assert (listed.structured_content or {})["total"] == 0
