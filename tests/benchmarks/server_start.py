"""From the start of the server process to the answer to ``tools/list``, over standard input and output."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.benchmarks import Pair, benchmark

_BARE = "from mcp.server import MCPServer; MCPServer('bare').run('stdio')"


@benchmark("server start to tools/list", target=1.4, peer="bare MCPServer", rounds=7)
@contextmanager
def server_start() -> Iterator[Pair]:
    """Ours through ``python -I -m plumbline_mcp serve``; the peer serves no tool."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PLUMBLINE_HOME": str(Path(home, "home"))}
        ours = StdioServerParameters(
            command=sys.executable, args=["-I", "-m", "plumbline_mcp", "serve"], env=environment
        )
        bare = StdioServerParameters(command=sys.executable, args=["-I", "-c", _BARE], env=environment)
        yield Pair(lambda: anyio.run(_tools, ours, True), lambda: anyio.run(_tools, bare, False))


async def _tools(server: StdioServerParameters, some: bool) -> None:
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        listed = await session.list_tools()
        if bool(listed.tools) != some:
            raise RuntimeError(f"{server.args} listed {len(listed.tools)} tools")
