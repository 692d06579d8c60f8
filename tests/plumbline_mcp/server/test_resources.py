"""Raw records as resources: whole, by range, verified, and never outside their run."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp.types import BlobResourceContents, ReadResourceResult

from plumbline_mcp.server import build_server
from tests.plumbline_mcp.sample_workspace import Sample, make, seal
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return make(tmp_path)


async def asked(sample: Sample, uri: str, mode: str = "auto") -> ReadResourceResult | MCPError:
    async with Client(build_server(sample.home), mode=mode) as client:
        try:
            return await client.read_resource(uri)
        except MCPError as error:
            return error


async def read(sample: Sample, uri: str, mode: str = "auto") -> bytes:
    result = await asked(sample, uri, mode)
    assert not isinstance(result, MCPError), result
    (content,) = result.contents
    return (
        base64.b64decode(content.blob) if isinstance(content, BlobResourceContents) else content.text.encode()
    )


async def refused(sample: Sample, uri: str) -> str:
    result = await asked(sample, uri)
    assert isinstance(result, MCPError), result
    return str(result)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_whole_verdict_is_read_with_its_inputs(sample: Sample, mode: str) -> None:
    raw = await read(sample, f"plumbline://verdicts/{sample.failing}", mode)
    assert raw.isascii()
    assert b"\x1b" not in raw
    stored = json.loads(raw)
    assert len(stored["verdict"]["parts"][0]["problems"]) == 400
    assert stored["inputs"]["rows"].startswith("ATTACK\x1b")


@pytest.mark.parametrize("mode", ERAS)
async def test_the_bytes_of_a_sealed_file_are_read_whole_and_by_range(sample: Sample, mode: str) -> None:
    base = f"plumbline://runs/{sample.run}"
    log = (sample.workspace.runs / sample.run / "logs/rank-00000.err").read_bytes()
    assert await read(sample, f"{base}/files/logs/rank-00000.err", mode) == log
    assert await read(sample, f"{base}/files/logs/rank-00000.err?offset=6&length=4", mode) == b"line"
    assert await read(sample, f"{base}/files/logs/rank-00000.err?offset=100000", mode) == b""
    text = await read(sample, f"{base}/text/logs/rank-00000.err", mode)
    assert text.startswith(b"first line\nATTACK\\x1b]52")


@pytest.mark.parametrize(
    "name",
    [
        "../../plumbline.db",
        "..%2F..%2Fplumbline.db",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "records/../../../plumbline.db",
        "manifest.json",
        "no-such-file",
        "logs/rank-00000.err?length=99999999",
        "logs/rank-00000.err?offset=-1",
    ],
)
async def test_what_is_not_a_sealed_file_of_the_run_is_refused(sample: Sample, name: str) -> None:
    assert await refused(sample, f"plumbline://runs/{sample.run}/files/{name}")


@pytest.mark.parametrize("run", ["rows-0009", "..", "%2E%2E", ""])
async def test_an_unknown_run_or_verdict_is_refused(sample: Sample, run: str) -> None:
    for uri in (f"plumbline://runs/{run}/files/job.json", f"plumbline://verdicts/{run}"):
        assert await refused(sample, uri)


async def test_a_file_changed_after_sealing_is_refused(sample: Sample) -> None:
    (sample.workspace.runs / sample.run / "job.sh").write_text("exit 1\n")
    assert "changed after sealing" in await refused(sample, f"plumbline://runs/{sample.run}/files/job.sh")


async def test_a_link_that_a_job_left_is_never_followed(tmp_path: Path) -> None:
    sample = make(tmp_path)
    run = sample.workspace.new_id("rows")
    folder = sample.workspace.runs / run
    job = sample.workspace.run(sample.run).job.model_copy(update={"run_id": run})
    sample.workspace.add_run(job)
    folder.mkdir()
    (folder / "job.json").write_text(job.model_dump_json())
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private")
    (folder / "output").symlink_to(secret)
    (folder / "direct").symlink_to(secret / "key")
    seal(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = {"sha256": manifest["files"].get("direct", {}).get("sha256", "0" * 64), "size": 7}
    manifest["files"]["output/key"] = manifest["files"]["direct"] = entry
    (folder / "manifest.json").write_text(json.dumps(manifest))
    sealed = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    sample.workspace.seal_run(run, sealed)
    for name in ("output/key", "direct"):
        assert "cannot be" in await refused(sample, f"plumbline://runs/{run}/files/{name}")
