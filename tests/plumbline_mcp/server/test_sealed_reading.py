"""What a tool shows of a run is what was sealed: a record changed later is refused, never shown."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from plumbline_mcp.server import build_server
from tests.plumbline_mcp.sample_workspace import Sample, make, seal
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio

LOG, ROWS = "logs/rank-00000.err", "records/rank-00000/rows-0-000.safetensors"
WEIGHTS, ENVIRONMENT = "output/model.safetensors", "records/rank-00000/environment.json"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def changed(path: Path) -> None:
    """The last byte of a file is another one."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


READERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (LOG, "run_show", {"run_id": "RUN"}),
    (ENVIRONMENT, "environment_read", {"run_id": "RUN"}),
    (ROWS, "rows_read", {"rows": "RUN"}),
    (ROWS, "rows_read", {"rows": f"FOLDER/{ROWS}"}),
    (WEIGHTS, "tensors_read", {"path": "RUN"}),
    (WEIGHTS, "tensors_read", {"path": "RUN", "tensor": "exported"}),
    (WEIGHTS, "tensors_read", {"path": "FOLDER/output", "tensor": "exported"}),
    (WEIGHTS, "tensors_read", {"path": f"FOLDER/{WEIGHTS}"}),
    (WEIGHTS, "tensors_read", {"path": "LINK"}),
    (ROWS, "rows_read", {"rows": "LINK"}),
    (ROWS, "rows_read", {"rows": "COPY"}),
    (WEIGHTS, "tensors_read", {"path": "COPY", "tensor": "exported"}),
)


async def read(sample: Sample, mode: str, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
    """Whether a call failed, and its text; the words in capitals stand for the run, its folder, a copy."""
    folder = sample.workspace.runs / sample.run
    names = {"RUN": sample.run, "LINK": sample.home / "link", "COPY": sample.home / "copy"}
    given = {
        name: str(names.get(value, value)).replace("FOLDER", str(folder)) for name, value in arguments.items()
    }
    async with Client(build_server(sample.home), mode=mode) as client:
        result = await client.call_tool(tool, given)
    return bool(result.is_error), getattr(result.content[0], "text", "")


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return make(tmp_path)


def spread(sample: Sample) -> Path:
    """A link to the run and a copy of it, as they are now; returns its folder."""
    folder = sample.workspace.runs / sample.run
    (sample.home / "link").symlink_to(folder)
    shutil.copytree(folder, sample.home / "copy")
    return folder


@pytest.mark.parametrize("mode", ERAS)
async def test_a_sealed_run_is_read(sample: Sample, mode: str) -> None:
    spread(sample)
    for _, tool, arguments in READERS:
        failed, text = await read(sample, mode, tool, arguments)
        assert not failed, (tool, arguments, text)


@pytest.mark.parametrize(("name", "tool", "arguments"), READERS)
async def test_a_record_that_was_changed_after_sealing_is_refused(
    sample: Sample, name: str, tool: str, arguments: dict[str, Any]
) -> None:
    changed(sample.workspace.runs / sample.run / name)
    spread(sample)
    failed, text = await read(sample, ERAS[0], tool, arguments)
    assert failed, text
    assert "was changed after sealing" in text
    assert "a changed record is never judged" in text


async def test_a_record_that_was_changed_with_its_manifest_is_refused(sample: Sample) -> None:
    folder = sample.workspace.runs / sample.run
    for name in (LOG, ROWS, WEIGHTS, ENVIRONMENT):
        changed(folder / name)
    (folder / "manifest.json").unlink()
    seal(folder)
    spread(sample)
    for _, tool, arguments in READERS:
        failed, text = await read(sample, ERAS[0], tool, arguments)
        if tool == "run_show":
            assert "changed after sealing" in text
            assert "first line" not in text
        else:
            assert failed, (tool, arguments)
            assert "manifest.json was changed after sealing" in text


async def test_a_file_that_was_added_after_sealing_is_refused(sample: Sample) -> None:
    folder = sample.workspace.runs / sample.run
    shutil.copy(folder / WEIGHTS, folder / "output/more.safetensors")
    for path in ("FOLDER/output/more.safetensors", sample.run):
        failed, text = await read(sample, ERAS[0], "tensors_read", {"path": path})
        assert failed
        assert "more.safetensors is not in the manifest" in text
