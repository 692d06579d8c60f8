"""One JSON file for each tool as `tools/list` gives it to a role, and one for the rest that it sees."""

import json
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from plumbline_mcp.server import build_server
from plumbline_mcp.server.roles import Role

FOLDER = Path(__file__).parent / "tools"
"""What an agent sees."""
FOLDERS = {Role.AGENT: FOLDER, Role.VERIFIER: Path(__file__).parent / "verifier"}
"""The read-only role sees some of the agent's tools, as the agent sees them."""


def seen(role: Role = Role.AGENT) -> dict[str, str]:
    """File name to text, for every tool, and ``server.json``: instructions, resource templates, prompts."""
    return anyio.run(_seen, role)


async def _seen(role: Role) -> dict[str, str]:
    access = AccessToken(token="-", client_id="-", scopes=[role.value])
    auth_context_var.set(AuthenticatedUser(access))  # of this run of the event loop alone
    async with Client(build_server()) as client:
        tools = (await client.list_tools()).tools
        templates = (await client.list_resource_templates()).resource_templates
        prompts = (await client.list_prompts()).prompts
        server = {
            "instructions": (client.instructions or "").splitlines(),
            "tools": [tool.name for tool in tools],
            "resource_templates": [_plain(one) for one in templates],
            "prompts": [_plain(one) for one in prompts],
        }
    files = {f"{tool.name}.json": _plain(tool) for tool in tools} | {"server.json": server}
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in files.items()}


def _plain(model: Any) -> dict[str, Any]:
    plain: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def write() -> None:
    """Replace the folders' files, once all of them could be made."""
    for folder, files in [(FOLDERS[role], seen(role)) for role in FOLDERS]:
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.json"):
            old.unlink()
        for name, text in files.items():
            (folder / name).write_text(text)
