"""One JSON file for each tool as `tools/list` gives it, and one for the rest an agent sees of the server."""

import json
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

from plumbline_mcp.server import build_server

FOLDER = Path(__file__).parent / "tools"


def seen() -> dict[str, str]:
    """File name to text, for every tool, and ``server.json``: instructions, resource templates, prompts."""
    return anyio.run(_seen)


async def _seen() -> dict[str, str]:
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
    """Replace the folder's files, once all of them could be made."""
    files = seen()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text)
