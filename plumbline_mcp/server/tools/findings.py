"""Findings for the agent: propose a root cause, have it recomputed, put it before the reviewers."""

from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from pydantic import Field

from plumbline_mcp.findings.comparison import Comparison
from plumbline_mcp.findings.finding import Finding, Pattern
from plumbline_mcp.findings.records import StoredFinding
from plumbline_mcp.findings.states import State
from plumbline_mcp.server import cursors
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.roles import caller, peer_uid
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import Page, View, line

_PAGE = 50
_STEPS = 10
_HANDLES = 20
STORES = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
"""A call whose answer was lost may be made again: it finds what it stored."""
_NEXT = {
    State.PROPOSED: 'finding_recompute(finding_id="{id}"), or another agent with a verifier\'s token',
    State.REBUILT: 'finding_confirm(finding_id="{id}")',
    State.DISPUTED: "finding_propose(...) with what the verifier saw, as a new finding",
    State.CONFIRMED: 'plan_draft(task=..., fix="{id}") once what it changes of a signed job is made',
}


class FindingRow(View):
    """One line of the list."""

    id: str
    state: State
    pattern: int
    silent: bool
    untrusted_title: str
    proposer: str
    verdicts: tuple[str, ...]


class FindingList(Page):
    """Findings, newest first."""

    findings: tuple[FindingRow, ...]


class ComparedView(View):
    """One compared thing."""

    untrusted_name: str
    result: str
    untrusted_claimed: str
    untrusted_found: str


class VerificationView(View):
    """What a verifier found."""

    id: str
    principal: str
    way: str
    result: str
    compared: tuple[ComparedView, ...] = ()


class StepView(View):
    """One step of a finding."""

    state: State
    by: str
    at: str
    untrusted_reason: str


class FindingView(View):
    """A finding. Confirmed is only what a reviewer signed."""

    id: str
    state: State
    pattern: str
    silent: bool
    untrusted_title: str
    untrusted_cause: str
    untrusted_cause_place: str
    untrusted_place: str
    untrusted_fix: str
    untrusted_cheapest_check: str
    untrusted_also_check: tuple[str, ...]
    verdicts: tuple[str, ...]
    untrusted_evidence: tuple[str, ...]
    stated_values: dict[str, float]
    proposer: str
    verifications: tuple[VerificationView, ...]
    steps: tuple[StepView, ...]
    untrusted_unprepared: str = Field("", description="why no verifier can be handed it")
    ticket: str | None = Field(description="the approval that it waits for or was closed by")
    next: str


Id = Annotated[str, Field(description="e.g. finding-0001")]


def add_tools(toolset: Toolset) -> None:
    """Add the tools ``finding_*``."""

    def finding_propose(
        verdicts: Annotated[list[str], Field(description="the first is rebuilt")],
        title: str,
        pattern: Annotated[
            Literal[1, 2, 3, 4, 5, 6, 7],
            Field(description="1 tokens, 2 layers, 3 length, 4 updates, 5 resume, 6 conversion, 7 launch"),
        ],
        silent: Annotated[bool, Field(description="training goes on and logs nothing")],
        cause: Annotated[str, Field(description="and whose: framework, dependency, model")],
        fix: Annotated[str, Field(description="or workaround")],
        cheapest_check: str,
        cause_place: Annotated[str, Field(description="file and line")] = "",
        also_check: Annotated[list[str] | None, Field(description="combinations that share it")] = None,
        place: Annotated[
            dict[str, int | str] | None, Field(description="rank, step, row, token, tensor, field, ...")
        ] = None,
        values: Annotated[dict[str, float] | None, Field(description="`<part>: <measurement>`")] = None,
        evidence: Annotated[
            list[str] | None, Field(description="RUN:FILE or RUN:FILE:SPAN; row 3, bytes 0-63")
        ] = None,
        framework: Annotated[str, Field(description="where the verdict names none")] = "",
    ) -> FindingView:
        """Propose a root cause. Somebody else has to find place and values from the raw records, untold."""
        given: dict[str, Any] = {
            "verdicts": verdicts,
            "title": title,
            "pattern": pattern,
            "silent": silent,
            "cause": cause,
            "fix": fix,
            "cheapest_check": cheapest_check,
            "cause_place": cause_place,
            "also_check": also_check,
            "place": place,
            "values": values,
            "evidence": evidence,
            "framework": framework,
        }
        return _proposed(toolset, given)

    def finding_list(state: State | None = None, cursor: str | None = None) -> FindingList:
        """List findings, newest first."""
        return _listed(toolset, state, cursor)

    def finding_show(finding_id: Id) -> FindingView:
        """Show one finding: cause, evidence, what each verifier found, every step."""
        return _view(toolset, finding_id)

    async def finding_recompute(ctx: Context, finding_id: Id) -> FindingView:
        """Rebuild a proposed finding by the separate recomputation, from a neutral copy of the records."""
        async with reported(ctx):
            return await anyio.to_thread.run_sync(_recomputed, toolset, finding_id)

    def finding_confirm(
        ctx: Context,
        finding_id: Id,
        departure: Annotated[str, Field(description="where the framework documents it, if it does")] = "",
    ) -> FindingView:
        """Ask the reviewers about a rebuilt finding; call it again once they signed. Only they confirm."""
        from plumbline_mcp.findings.confirming import decide

        if not _view(toolset, finding_id).state.final:
            decide(toolset.workspace, finding_id, caller().name, departure, peer_uid(ctx))
        return _view(toolset, finding_id)

    toolset.add(
        finding_propose, FindingView, title="Propose a finding", annotations=STORES, outlined=_OUTLINE
    )
    toolset.add(finding_list, FindingList, title="List findings")
    toolset.add(finding_show, FindingView, title="Show a finding")
    for tool, title in (
        (finding_recompute, "Recompute a finding"),
        (finding_confirm, "Have a finding confirmed"),
    ):
        toolset.add(tool, FindingView, title=title, annotations=STORES, outlined=_OUTLINE)


_OUTLINE = ("id", "state", "verifications", "ticket", "next")


def _proposed(toolset: Toolset, given: dict[str, Any]) -> FindingView:
    """The new finding; the same words again, while they wait to be rebuilt, are the same finding."""
    from plumbline_mcp.findings.proposing import proposal_of, propose, waiting

    workspace, proposal, name = toolset.workspace, proposal_of(given), caller().name
    known = waiting(workspace, proposal, name)
    return _view(toolset, known or propose(workspace, proposal, name).finding.id)


def _recomputed(toolset: Toolset, finding_id: str) -> FindingView:
    from plumbline_mcp.findings.verification import verify_by_recompute

    if _view(toolset, finding_id).state is State.PROPOSED:
        verify_by_recompute(toolset.workspace, finding_id)
    return _view(toolset, finding_id)


def _listed(toolset: Toolset, state: State | None, cursor: str | None) -> FindingList:
    from plumbline_mcp.findings.store import Findings

    arguments = {"state": state}
    after = cursors.decode(cursor, "finding_list", arguments)
    store = Findings(toolset.workspace)
    found = store.page(state, _PAGE + 1, None if after is None else str(after))
    shown = found[:_PAGE]
    more = len(found) > _PAGE
    return FindingList(
        total=store.count(state),
        findings=tuple(_row(finding) for finding in shown),
        truncated=more,
        cursor=cursors.encode("finding_list", arguments, shown[-1].id) if more else None,
        next=f'finding_show(finding_id="{shown[0].id}")' if shown else 'verdict_list(outcome="fail")',
    )


def _row(finding: Finding) -> FindingRow:
    return FindingRow(
        id=finding.id,
        state=finding.state,
        pattern=finding.pattern,
        silent=finding.silent,
        untrusted_title=line(finding.title),
        proposer=line(finding.proposer),
        verdicts=finding.verdicts[:5],
    )


def _view(toolset: Toolset, finding_id: str) -> FindingView:
    from plumbline_mcp.findings.confirming import open_ticket
    from plumbline_mcp.findings.store import Findings

    store = Findings(toolset.workspace)
    stored = store.get(finding_id)
    ticket = stored.ticket
    if ticket is None and stored.state is State.REBUILT:
        waiting = open_ticket(toolset.workspace, stored)
        ticket = waiting.id if waiting else None
    return _told(stored, ticket, store.unprepared(finding_id))


def _told(stored: StoredFinding, ticket: str | None, unprepared: str) -> FindingView:
    finding = stored.finding
    step = _NEXT.get(finding.state, "").format(id=finding.id)
    if finding.state is State.REBUILT and ticket:
        step = f"a reviewer decides {ticket}; then finding_confirm again"
    return FindingView(
        id=finding.id,
        state=finding.state,
        pattern=f"{int(finding.pattern)}: {Pattern(finding.pattern).words}",
        silent=finding.silent,
        untrusted_title=line(finding.title),
        untrusted_cause=line(finding.cause, 2000),
        untrusted_cause_place=line(finding.cause_place, 500),
        untrusted_place=line(finding.place),
        untrusted_fix=line(finding.fix, 2000),
        untrusted_cheapest_check=line(finding.cheapest_check, 500),
        untrusted_also_check=tuple(line(one) for one in finding.also_check),
        verdicts=finding.verdicts,
        untrusted_evidence=_evidence(finding),
        stated_values={line(name): value for name, value in finding.claim.values.items()},
        proposer=line(finding.proposer),
        verifications=tuple(
            VerificationView(
                id=one.id,
                principal=line(one.principal),
                way=str(one.way),
                result=str(one.comparison.result) if one.comparison else "not submitted",
                compared=_compared(one.comparison) if one.comparison else (),
            )
            for one in stored.verifications[-5:]
        ),
        steps=tuple(
            StepView(state=one.state, by=line(one.actor), at=one.at, untrusted_reason=line(one.reason))
            for one in stored.events[-_STEPS:]
        ),
        untrusted_unprepared=line(unprepared, 500),
        ticket=ticket,
        next=step,
    )


def _evidence(finding: Finding) -> tuple[str, ...]:
    shown = finding.evidence[:_HANDLES]
    told = tuple(line(f"{one.source} {one.file} {one.span} sha256 {one.sha256[:12]}") for one in shown)
    more = len(finding.evidence) - len(shown)
    return (*told, f"and {more} more: plumbline finding show {finding.id}") if more else told


def _compared(comparison: Comparison) -> tuple[ComparedView, ...]:
    return tuple(
        ComparedView(
            untrusted_name=line(one.name),
            result=str(one.result),
            untrusted_claimed=line(one.claimed),
            untrusted_found=line(one.found),
        )
        for one in comparison.fields[:10]
    )
