"""Real processes: the installed program on standard input and output, and over HTTP with its token."""

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.known_tokens import KnownTokens
from plumbline_mcp.server.roles import peer_uid
from plumbline_mcp.server.transports import _serve, client_configuration, listen
from tests.plumbline_mcp.server.roles import make_site, mint
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio
PROGRAM = Path(sys.executable).parent / "plumbline"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("mode", ERAS)
async def test_the_installed_program_serves_standard_input_and_output(tmp_path: Path, mode: str) -> None:
    server = StdioServerParameters(
        command=str(PROGRAM), args=["serve"], cwd=tmp_path, env={"PLUMBLINE_HOME": str(tmp_path / "home")}
    )
    async with Client(server, mode=mode) as client:
        assert "scan_status" in {tool.name for tool in (await client.list_tools()).tools}
        status = await client.call_tool("scan_status", {})
        wrong = await client.call_tool("verdict_show", {"verdict": "x"})
    assert status.structured_content is not None
    assert status.structured_content["workspace"] == str(tmp_path / "home")
    assert wrong.is_error
    assert wrong.content[0].type == "text"
    assert wrong.content[0].text.endswith('. Next: verdict_show(verdict_id="x")')
    assert "://" not in wrong.content[0].text  # no link to a library's documentation
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def workers_naming(text: str) -> set[str]:
    """Command lines of every worker with a text in its environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            if b"plumbline_mcp.worker" in arguments and text.encode() in environment:
                found.add(arguments.replace(b"\0", b" ").decode())
    return found


async def test_a_check_goes_on_after_a_lost_call_and_ends_with_the_server(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 20\n")
    slow.chmod(0o755)
    server = StdioServerParameters(
        command=str(PROGRAM), args=["serve", "--python", str(slow)], env={"PLUMBLINE_HOME": str(tmp_path)}
    )
    async with Client(server) as client:
        with anyio.move_on_after(3):
            await client.call_tool("check_image", {"python": str(slow), "framework": "transformers"})
        status = await client.call_tool("scan_status", {})
        assert status.structured_content is not None
        assert status.structured_content["running"]
        assert workers_naming(str(tmp_path))
    for _ in range(50):
        if not workers_naming(str(tmp_path)):
            break
        await anyio.sleep(0.1)
    assert workers_naming(str(tmp_path)) == set()


@dataclass(frozen=True)
class Served:
    """A running server: its address, its token, the configuration it printed."""

    url: str
    token: str
    port: int
    printed: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("http")
    process = subprocess.Popen(
        [str(PROGRAM), "serve", "--http"],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr
    printed = ""
    while not printed.endswith("\n}\n"):
        text = process.stderr.readline()
        assert text, printed
        printed += text
    entry = json.loads(printed[printed.index("{") :])["mcpServers"]["plumbline"]
    token = entry["headers"]["Authorization"].removeprefix("Bearer ")
    yield Served(entry["url"], token, int(re.findall(r":(\d+)/", entry["url"])[0]), printed)
    process.terminate()
    assert process.wait(20) in {0, -15, 130, 143}


def post(served: Served, headers: dict[str, str]) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    sent = {"Accept": "application/json, text/event-stream"} | headers
    for _ in range(100):
        try:
            return httpx2.post(served.url, json=body, headers=sent, timeout=30).status_code
        except httpx2.ConnectError:
            anyio.run(anyio.sleep, 0.1)
    raise AssertionError("nothing listens")


def test_http_prints_a_long_random_token_and_listens_on_loopback_only(served: Served) -> None:
    assert len(served.token) >= 43
    assert served.url.startswith("http://127.0.0.1:")
    for address in ("0.0.0.0", "::"):  # noqa: S104 - looked for, not bound
        table = Path("/proc/net/tcp6" if ":" in address else "/proc/net/tcp").read_text()
        everywhere = "0" * (32 if ":" in address else 8)
        assert f"{everywhere}:{served.port:04X} " not in table


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer TOKENx"}, 401),
        ({"Authorization": "Basic TOKEN"}, 401),
        ({"Authorization": "Bearer TOKEN", "Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer TOKEN", "Host": "evil.example"}, 421),
        ({"Authorization": "Bearer TOKEN", "Host": "evil.example:PORT"}, 421),
        ({"Authorization": "Bearer TOKEN", "Origin": "http://127.0.0.1:1"}, 403),
    ],
)
def test_http_refuses_a_wrong_token_origin_or_host(
    served: Served, headers: dict[str, str], status: int
) -> None:
    sent = {
        name: value.replace("TOKEN", served.token).replace("PORT", str(served.port))
        for name, value in headers.items()
    }
    assert post(served, sent) == status


@pytest.mark.parametrize("mode", ERAS)
async def test_http_serves_whoever_has_the_token(served: Served, mode: str) -> None:
    web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {served.token}"}, timeout=60)
    async with web, Client(streamable_http_client(served.url, http_client=web), mode=mode) as client:
        assert "check_list" in {tool.name for tool in (await client.list_tools()).tools}
        assert not (await client.call_tool("version_show", {})).is_error


async def test_a_program_reads_address_and_token_as_one_line(tmp_path: Path) -> None:
    command = [str(PROGRAM), "serve", "--http", "--json", "--home", str(tmp_path / "home")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    said = json.loads(process.stdout.readline())
    assert (said["pid"], set(said)) == (process.pid, {"url", "token", "pid", "mcpServers"})
    assert said["mcpServers"]["plumbline"]["url"] == said["url"]
    web = httpx2.AsyncClient(headers=said["mcpServers"]["plumbline"]["headers"], timeout=60)
    async with web, Client(streamable_http_client(said["url"], http_client=web)) as client:
        assert not (await client.call_tool("version_show", {})).is_error
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert out == ""
    assert said["token"] not in err


def test_json_without_http_is_refused_with_what_to_add(tmp_path: Path) -> None:
    ended = subprocess.run(
        [str(PROGRAM), "serve", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert "add --http to have the address told" in json.loads(ended.stdout)["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_a_clear_error() -> None:
    listening = listen(0)
    listening.listen()
    port = listening.getsockname()[1]
    with pytest.raises(UsageError, match=f"port {port} cannot be used"):
        listen(port)
    listening.close()


async def test_only_the_token_of_this_start_is_accepted(tmp_path: Path) -> None:
    verifier = KnownTokens(tmp_path / "home", "a" * 43)
    assert await verifier.verify_token("a" * 43) is not None
    for wrong in ("", "a", "a" * 42, "a" * 44, "b" * 43, "é" * 43, "\udc80"):
        assert await verifier.verify_token(wrong) is None


async def test_the_token_of_a_start_ends_when_a_reviewer_is_enrolled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    verifier = KnownTokens(tmp_path / "home", "a" * 43)
    assert await verifier.verify_token("a" * 43) is not None
    site = make_site(tmp_path)
    assert await verifier.verify_token("a" * 43) is None
    minted = mint(site, "read-only", "r1")
    found = await verifier.verify_token(minted.token)
    assert found is not None
    assert (found.client_id, found.scopes, found.token) == ("r1", ["read-only"], "-")


def test_the_printed_configuration_is_what_a_client_needs() -> None:
    text = client_configuration(8765, "secret")
    entry = json.loads(text[text.index("{") :])["mcpServers"]["plumbline"]
    assert entry == {
        "type": "http",
        "url": "http://127.0.0.1:8765/mcp",
        "headers": {"Authorization": "Bearer secret"},
    }


async def _whose(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the user at the other end, as a tool asks for it."""
    context = types.SimpleNamespace(request_context=types.SimpleNamespace(request=Request(scope)))
    await PlainTextResponse(str(peer_uid(context)))(scope, receive, send)


async def test_a_header_does_not_say_who_calls() -> None:
    listening = listen(0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    async with anyio.create_task_group() as group, httpx2.AsyncClient(timeout=20) as web:
        group.start_soon(_serve, _whose, listening)
        for header in ({}, {"X-Forwarded-For": "10.1.2.3"}, {"X-Forwarded-For": "somebody"}):
            assert (await web.get(url, headers=header)).text == str(os.geteuid()), header
        group.cancel_scope.cancel()
