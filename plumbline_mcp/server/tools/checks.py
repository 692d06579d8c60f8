"""One tool for each check, generated from the check's ``inputs``; and the list of the checks."""

import inspect
import json
from collections.abc import Awaitable
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field
from pydantic.fields import FieldInfo

import checks
from checks.check import Check, Progress
from checks.verdict import Verdict
from plumbline_mcp.server.interpreters import ARGUMENT, refuse_unnamed
from plumbline_mcp.server.located import known_verdict
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.roles import EVERYONE
from plumbline_mcp.server.tools.verdicts import shown
from plumbline_mcp.server.toolset import JUDGES, Linked, Toolset
from plumbline_mcp.server.views import VerdictView, View

_RUNS = (
    "Runs `python` only when the user named it (`plumbline serve --python`, or an earlier check or run from "
    "the command line) or Plumbline built it.\n"
)
TOLD = (
    *("id", "outcome", "summary", "untrusted_reason", "next_step"),
    *("parts", "problems", "total", "truncated", "cursor", "next"),
)
"""What the tool of a check tells of its answer: all of it is what verdict_show answers, and told there."""


class CheckView(View):
    """What a check asks and needs."""

    name: str
    tool: str
    question: str
    reference: str
    rule: str
    training: str
    pattern: int = Field(description="what a failure most often is, as finding_propose numbers them")
    records: tuple[str, ...]
    faults: tuple[str, ...] = Field(description="what it injects and must catch on every run")
    example: str


class CheckList(View):
    """Every check, in the order of the training lifecycle."""

    checks: tuple[CheckView, ...]
    next: str


def add_tools(toolset: Toolset) -> None:
    """Add ``check_<name>`` for every check, and ``check_list``."""
    for check in checks.discover().values():
        _add_check(toolset, check)
    toolset.add(check_list, CheckList, title="List the checks", roles=EVERYONE)


def check_list() -> CheckList:
    """List the checks: what each asks, its reference and rule, what it needs and the faults it must catch."""
    known = tuple(_view(check) for check in checks.discover().values())
    return CheckList(checks=known, next=f"{known[0].tool}(...)" if known else "")


def _view(check: Check[Any, Any]) -> CheckView:
    return CheckView(
        name=check.name,
        tool=f"check_{check.name}",
        question=check.question,
        reference=check.reference,
        rule=check.rule,
        training=check.training,
        pattern=check.pattern,
        records=check.records,
        faults=tuple(fault.name for fault in check.faults),
        example=check.example,
    )


def _add_check(toolset: Toolset, check: Check[Any, Any]) -> None:
    async def run(ctx: Context, **arguments: Any) -> Linked:
        from plumbline_mcp.scan.service import run_check

        refuse_unnamed(toolset.workspace, toolset.pythons, arguments)

        def start(progress: Progress) -> Awaitable[Verdict]:
            return run_check(toolset.workspace, check.name, arguments, progress=progress)

        key = json.dumps([check.name, arguments], sort_keys=True, default=str)
        async with reported(ctx) as progress:
            verdict = await toolset.running.wait(f"check_{check.name}", key, start, progress)
        toolset.shown.add(verdict.id)
        return shown(verdict, known_verdict(toolset, verdict.id).inputs)

    toolset.add(
        run,
        VerdictView,
        name=f"check_{check.name}",
        title=check.title,
        description=_description(check),
        annotations=JUDGES,
        parameters=_parameters(check),
        outlined=TOLD,
    )


def _description(check: Check[Any, Any]) -> str:
    runs = _RUNS if ARGUMENT in check.inputs.model_fields else ""
    return (
        f"{check.question}\n"
        f"{runs}"
        "Trains nothing, changes nothing; stores and returns a verdict. If your client gives up waiting, the "
        "check goes on: make the same call again, or look in verdict_list. Next: verdict_show for more."
    )


def _parameters(check: Check[Any, Any]) -> list[inspect.Parameter]:
    """The fields of the check's inputs as keyword parameters, with their descriptions and bounds."""
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
    return [context, *(_parameter(name, field) for name, field in check.inputs.model_fields.items())]


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    described = Field(description=field.description)
    annotated: Any = Annotated
    annotation = annotated[(field.annotation, *field.metadata, described)]
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
