"""Checks that the agent proposes: their text put into the workspace, and judging with it, confined."""

import json
from collections.abc import Awaitable
from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from pydantic import Field, JsonValue

from checks.check import Progress
from checks.verdict import Verdict
from plumbline_mcp.server.located import known_verdict
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.tools.checks import TOLD
from plumbline_mcp.server.tools.verdicts import shown
from plumbline_mcp.server.toolset import JUDGES, Linked, Toolset
from plumbline_mcp.server.views import VerdictView, View, line

_STORES = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_Name = Annotated[str, Field(description="lower-case letters, digits and _; no check's name")]


class ProposalView(View):
    """A proposed check."""

    name: str
    sha256: str
    standing: str
    next: str


def add_tools(toolset: Toolset) -> None:
    """Add ``proposal_add`` and ``proposal_judge``."""

    def proposal_add(
        name: _Name,
        source: Annotated[str, Field(description="a Python file that defines CHECK, as files of checks/ do")],
    ) -> ProposalView:
        """Propose a check of your own: its text is stored, neither loaded nor run. Next: proposal_judge.

        It stays outside the version until the person accepts its text (`plumbline proposed accept`).
        """
        from plumbline_mcp.scan import proposed_checks

        added = proposed_checks.add(toolset.workspace, name, source)
        return ProposalView(
            name=added.name,
            sha256=added.sha256,
            standing=line(added.standing),
            next=f'proposal_judge(name="{added.name}", inputs={{...}})',
        )

    async def proposal_judge(
        ctx: Context,
        name: _Name,
        inputs: Annotated[
            dict[str, JsonValue], Field(description="its inputs by name; absolute paths or run ids")
        ],
    ) -> Linked:
        """Judge with a proposed check, confined: no network, no other process, no writing, limits.

        It reads any file you name that the server's user may read, but not the workspace or the trust roots.
        The verdict is stored, marked as outside the version. What cannot be confined is not_evaluated.
        """
        from plumbline_mcp.scan.proposed_checks import run_proposed

        def start(progress: Progress) -> Awaitable[Verdict]:
            return run_proposed(toolset.workspace, name, inputs, progress=progress)

        key = json.dumps(["proposed", name, inputs], sort_keys=True, default=str)
        async with reported(ctx) as progress:
            verdict = await toolset.running.wait(f"proposed_{line(name, 40)}", key, start, progress)
        toolset.shown.add(verdict.id)
        return shown(verdict, known_verdict(toolset, verdict.id).inputs)

    toolset.add(proposal_add, ProposalView, title="Propose a check", annotations=_STORES)
    toolset.add(
        proposal_judge, VerdictView, title="Judge with a proposed check", annotations=JUDGES, outlined=TOLD
    )
