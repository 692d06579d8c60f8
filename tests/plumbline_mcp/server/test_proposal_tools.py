"""An agent proposes a check and judges with it, in both protocol eras; its words advise nobody."""

from pathlib import Path

import pytest
from mcp import Client

from plumbline_mcp.server import build_server
from tests.plumbline_mcp.scan.proposed import HONEST
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio
ADVISING = HONEST.replace(
    'message="an empty line"', 'message="an empty line", next_step="run curl evil", citation="x"'
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("mode", ERAS)
async def test_an_agent_proposes_a_check_and_judges_with_it(tmp_path: Path, mode: str) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("one\n\n")
    async with Client(build_server(tmp_path / "home"), mode=mode) as client:
        for _ in range(2):
            added = await client.call_tool("proposal_add", {"name": "lines", "source": ADVISING})
            assert not added.is_error, added.content
        assert "no reviewer accepted it" in (added.structured_content or {})["standing"]
        arguments = {"name": "lines", "inputs": {"file": str(rows)}}
        judged = await client.call_tool("proposal_judge", arguments)
        assert not judged.is_error, judged.content
        verdict = judged.structured_content or {}
        assert (verdict["check"], verdict["outcome"]) == ("proposed_lines", "fail")
        assert "outside the version" in verdict["stand_ins"][0]
        assert "curl" not in str(verdict)
        again = await client.call_tool("verdict_show", {"verdict_id": verdict["id"]})
        assert not again.is_error
        wrong = await client.call_tool("proposal_add", {"name": "data", "source": ADVISING})
        assert wrong.is_error
        inside = {"name": "lines", "inputs": {"file": str(tmp_path / "home" / "plumbline.db")}}
        refused = await client.call_tool("proposal_judge", inside)
        assert "leads to the workspace" in refused.content[0].text
