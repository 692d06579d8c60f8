"""Roles over real HTTP, in both protocol eras: what each token lists, may call, read and be prompted with."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError

from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.server.application import TOOLS
from plumbline_mcp.server.roles import Role, caller, socket_owner
from plumbline_mcp.server.toolset import Toolset
from tests.plumbline_mcp.server.roles import Site, make_site, mint, serving
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio
ROLES = [role.value for role in Role]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Served:
    site: Site
    url: str
    tokens: dict[str, str]
    said: dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("roles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(folder / "trust"))
        site = make_site(folder)
        tokens = {role: mint(site, role, f"the-{role}").token for role in ROLES}
        with serving(site, folder) as said:
            yield Served(site, said["url"], tokens, said)


@asynccontextmanager
async def client(served: Served, token: str, mode: str) -> AsyncIterator[Client]:
    web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    async with web, Client(streamable_http_client(served.url, http_client=web), mode=mode) as connected:
        yield connected


def toolset() -> Toolset:
    made = Toolset(None)
    for part in TOOLS:
        part.add_tools(made)
    return made


def status(served: Served, token: str) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}"}
    return httpx2.post(served.url, json=body, headers=headers, timeout=30).status_code


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("role", ROLES)
async def test_each_role_lists_its_tools_and_is_refused_every_other(
    served: Served, role: str, mode: str
) -> None:
    allowed = {name for name, roles in toolset().roles.items() if role in roles}
    async with client(served, served.tokens[role], mode) as connected:
        assert {tool.name for tool in (await connected.list_tools()).tools} == allowed
        for name, roles in toolset().roles.items():
            answer = await connected.call_tool(name, {"no_such_argument": 1})
            assert answer.is_error, name
            text = answer.content[0].text
            assert (f"the token of this request is of the role {role}" in text) == (role not in roles), text
            assert text.startswith(f"Error executing tool {name}: ") == (role in roles), text


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("role", ROLES)
async def test_only_who_reads_records_sees_resources(served: Served, role: str, mode: str) -> None:
    reads = role != "verifier"
    async with client(served, served.tokens[role], mode) as connected:
        listed = (await connected.list_resource_templates()).resource_templates
        assert bool(listed) == reads
        with pytest.raises(MCPError) as error:
            await connected.read_resource("plumbline://verdicts/data-0001")
        assert ("is for the role" in str(error.value)) == (not reads)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_prompt_is_for_its_role(served: Served, mode: str) -> None:
    arguments = {"model": "m"}
    async with client(served, served.tokens["agent"], mode) as connected:
        assert "day0_onboarding" in {one.name for one in (await connected.list_prompts()).prompts}
        assert (await connected.get_prompt("day0_onboarding", arguments)).messages
    for role in ("verifier", "read-only"):
        async with client(served, served.tokens[role], mode) as connected:
            assert "day0_onboarding" not in {one.name for one in (await connected.list_prompts()).prompts}
            with pytest.raises(MCPError, match="is for the role agent"):
                await connected.get_prompt("day0_onboarding", arguments)


async def test_a_verifier_learns_no_other_tool_from_a_misspelled_one(served: Served) -> None:
    async with client(served, served.tokens["verifier"], "auto") as connected:
        answer = await connected.call_tool("verdict_lis", {})
    assert answer.is_error
    assert "verdict_list" not in answer.content[0].text


@pytest.mark.parametrize("mode", ERAS)
async def test_the_status_says_who_one_is_and_that_approvals_are_advisory_here(
    served: Served, mode: str
) -> None:
    for role in ("agent", "read-only"):
        async with client(served, served.tokens[role], mode) as connected:
            answer = await connected.call_tool("scan_status", {})
        said = (answer.structured_content or {})["trust"]
        assert said.startswith(f"You are the-{role} (role {role}). ")
        assert said.count("advisory") == 1


class Carried(httpx2.Auth):
    """The token that is carried now, on whichever connection."""

    def __init__(self) -> None:
        self.token = ""

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        request.headers["Authorization"] = f"Bearer {self.token}"
        yield request


async def test_a_role_belongs_to_the_token_of_the_request_not_to_the_connection(served: Served) -> None:
    carried = Carried()
    carried.token = served.tokens["agent"]
    one = httpx2.Limits(max_connections=1)
    web = httpx2.AsyncClient(auth=carried, timeout=60, limits=one)
    async with web, Client(streamable_http_client(served.url, http_client=web), mode="auto") as connected:
        for role in ("agent", "verifier", "read-only", "agent"):
            carried.token = served.tokens[role]
            listed = {tool.name for tool in (await connected.list_tools(cache_mode="bypass")).tools}
            assert listed == {name for name, roles in toolset().roles.items() if role in roles}
            answer = await connected.call_tool("verdict_list", {})
            assert bool(answer.is_error) == (role == "verifier")


def initialize(served: Served, token: str, session: str = "", method: str = "initialize") -> httpx2.Response:
    client_info = {"name": "t", "version": "1"}
    asked = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client_info}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": asked if method == "initialize" else {}}
    headers = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}"}
    headers |= {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"} if session else {}
    return httpx2.post(served.url, json=body, headers=headers, timeout=30)


def test_a_session_cannot_be_taken_over_with_another_token(served: Served) -> None:
    opened = initialize(served, served.tokens["agent"])
    session = opened.headers["mcp-session-id"]
    assert initialize(served, served.tokens["agent"], session, "tools/list").status_code == 200
    for other in ("verifier", "read-only"):
        assert initialize(served, served.tokens[other], session, "tools/list").status_code == 404


async def _called(function: Any) -> None:
    answer = function()
    await answer


@pytest.mark.parametrize("role", ROLES)
async def test_each_tool_itself_refuses_another_role(role: str) -> None:
    """Past the list and past the server's gate: the function that the tool runs."""
    access = AccessToken(token="-", client_id="t", scopes=[role])
    reset = auth_context_var.set(AuthenticatedUser(access))
    try:
        made = toolset()
        for tool in made.tools:
            if role in made.roles[tool.name]:
                continue
            with pytest.raises(Exception, match="the token of this request is of the role") as error:
                await _called(tool.fn)
            assert type(error.value).__name__ == "ToolError"
    finally:
        auth_context_var.reset(reset)
    assert caller().role is Role.AGENT


def test_nothing_that_stores_or_starts_is_open_to_read_only() -> None:
    made = toolset()
    for tool in made.tools:
        if Role.READ_ONLY in made.roles[tool.name]:
            assert tool.annotations.read_only_hint, tool.name


def test_with_a_reviewer_there_is_no_token_of_the_start(served: Served) -> None:
    assert served.said["token"] is None
    headers = served.said["mcpServers"]["plumbline"]["headers"]
    assert headers == {"Authorization": "Bearer ${PLUMBLINE_TOKEN}"}


def test_a_revoked_token_is_refused_from_the_next_request_on(served: Served) -> None:
    minted = mint(served.site, "read-only", "short-lived")
    assert status(served, minted.token) != 401
    served.site.tokens.revoke("short-lived")
    assert status(served, minted.token) == 401
    assert status(served, served.tokens["agent"]) != 401


def test_a_session_ends_with_its_token(served: Served) -> None:
    minted = mint(served.site, "agent", "for-a-session")
    session = initialize(served, minted.token).headers["mcp-session-id"]
    assert initialize(served, minted.token, session, "tools/list").status_code == 200
    served.site.tokens.revoke("for-a-session")
    assert initialize(served, minted.token, session, "tools/list").status_code == 401


def test_the_server_keeps_no_token(served: Served) -> None:
    found = [path for path in served.site.home.rglob("*") if path.is_file()]
    assert any(path.name == "plumbline.db" for path in found)
    for path in found:
        content = path.read_bytes()
        assert not any(token.encode() in content for token in served.tokens.values()), path


def test_the_kernel_says_whose_socket_it_is() -> None:
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as near,
        listening.accept()[0] as far,
    ):
        assert socket_owner(near.getsockname(), far.getsockname()) == os.geteuid()
        assert socket_owner(("127.0.0.1", 1), far.getsockname()) is None
        assert socket_owner(("somewhere", 1), far.getsockname()) is None
        assert socket_owner(near.getsockname(), ("", 1)) is None
