"""What the agent of `plumbline onboard` may know: the protocol, and what the tools answer."""

import ast
import sys
from pathlib import Path

import pytest

from checks import discover
from plumbline_mcp.scan import scripted_agent
from plumbline_mcp.scan.fault_entries import load_corpus
from plumbline_mcp.scan.scripted_agent import ScriptedAgent, ToolRefused

pytestmark = pytest.mark.anyio
SOURCE = Path(scripted_agent.__file__).read_text(encoding="utf-8")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_it_imports_nothing_of_ours() -> None:
    nodes = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {f"{'.' * node.level}{node.module}" for node in nodes if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names)
    assert others == {"anyio", "mcp"}


def test_it_names_no_check_no_plant_and_no_expected_problem() -> None:
    texts = {
        node.value
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    entries = load_corpus().entries
    secrets = {entry.id for entry in entries} | {one.code for entry in entries for one in entry.expect}
    secrets |= {f"check_{name}" for name in discover()} | set(discover())
    assert len(secrets) > 100
    assert texts & secrets == set()


async def test_an_answer_that_is_an_error_ends_it_with_the_tools_sentence(tmp_path: Path) -> None:
    from mcp import Client

    from plumbline_mcp.server import build_server

    async with Client(build_server(tmp_path / "home")) as client:
        agent = ScriptedAgent(client, lambda *_: None)
        with pytest.raises(ToolRefused, match=r"task_draft: .*nowhere\.toml does not exist"):
            await agent.scan("/nowhere.toml")
