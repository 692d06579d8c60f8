"""Runs and what they recorded: the runs, one run, its manifest and its environment."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from approvals.visible import visible
from checks.errors import BadInput, CheckError
from checks.records.runs import RunFolder, read_json
from plumbline_mcp.server import cursors
from plumbline_mcp.server.links import LINKS, file_link
from plumbline_mcp.server.located import known_run, open_inside, sealed_run
from plumbline_mcp.server.tools.rows import add_rows
from plumbline_mcp.server.tools.steps import add_steps
from plumbline_mcp.server.toolset import Linked, Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, Page, View, line, size, take, texts

if TYPE_CHECKING:
    from plumbline_mcp.workspace import StoredRun

_PAGE = 50
_FILES_PAGE = 200
_DISTRIBUTIONS_PAGE = 80
_FACTS_BUDGET = 8_000
_LOG_TAIL = 3000


class RunRow(View):
    """One line of the list."""

    run_id: str
    state: str
    procedure: str
    untrusted_framework: str
    created: str
    ended: str | None


class RunList(Page):
    """Runs, newest first."""

    runs: tuple[RunRow, ...]


class ExitView(View):
    """How one rank ended."""

    rank: int
    clean: bool
    code: int | None
    signal: int | None
    timed_out: bool
    stopped: bool = Field(description="told to stop: another rank failed first, or the job was ended")


class RunView(View):
    """One run: what was launched, how it ended, where its records are."""

    run_id: str
    state: str
    outcome: str | None = Field(description="succeeded, failed, cancelled or timed_out")
    untrusted_reason: str
    procedure: str
    untrusted_framework: str
    created: str
    ended: str | None
    sealed: str = Field(description="whether the records still are what was sealed, or why not")
    manifest_sha256: str | None
    approval: str
    engine: str
    confinement: str
    plants: tuple[str, ...] = Field(description="faults planted on purpose; empty in a real run")
    untrusted_target: dict[str, str]
    untrusted_settings: dict[str, str]
    untrusted_inputs: dict[str, str]
    exits: tuple[ExitView, ...]
    files: int
    untrusted_log_tail: str = Field(description="end of rank 0's standard error")
    next: str


class FileView(View):
    """A sealed file."""

    untrusted_name: str
    sha256: str
    size: int
    uri: str


class Manifest(Page):
    """The sealed files of a run."""

    files: tuple[FileView, ...]


class Environment(Page):
    """What a rank recorded of the environment it ran in. ``total`` counts the matching distributions."""

    untrusted_facts: dict[str, str]
    untrusted_distributions: tuple[str, ...]


def add_tools(toolset: Toolset) -> None:
    """Add ``run_list``, ``run_show``, ``manifest_read``, ``environment_read`` and ``rows_read``."""

    def run_list(
        state: Annotated[str | None, Field(pattern="^(submitting|running|sealed|removed|lost)$")] = None,
        cursor: str | None = None,
    ) -> RunList:
        """List runs, newest first. A signed one is started by job_start, any other from the command line."""
        return _run_list(toolset, state, cursor)

    def run_show(run_id: Annotated[str, Field(description="e.g. rows-0001")]) -> Linked:
        """Show one run: job, exit of each rank, seal, end of its log, links to its raw records."""
        return _run_show(toolset, run_id)

    def manifest_read(
        run_id: str,
        prefix: Annotated[str, Field(description="only files below, e.g. records/")] = "",
        cursor: str | None = None,
    ) -> Manifest:
        """List a run's sealed files with size and SHA-256. Read one as its resource `uri`, or as `/text/`."""
        return _manifest(toolset, run_id, prefix, cursor)

    def environment_read(
        run_id: str,
        rank: Annotated[int, Field(ge=0)] = 0,
        contains: Annotated[str, Field(description="only distributions whose name contains this")] = "",
        cursor: str | None = None,
    ) -> Environment:
        """Read the environment a rank recorded: interpreter, framework, torch build, variables, packages."""
        return _environment(toolset, run_id, rank, contains, cursor)

    toolset.add(run_list, RunList, title="List runs")
    toolset.add(run_show, RunView, title="Show a run")
    toolset.add(manifest_read, Manifest, title="Read a run's manifest")
    toolset.add(environment_read, Environment, title="Read a run's environment")
    add_rows(toolset)
    add_steps(toolset)


def _run_list(toolset: Toolset, state: str | None, cursor: str | None) -> RunList:
    arguments = {"state": state}
    after = cursors.decode(cursor, "run_list", arguments)
    stored = toolset.workspace.runs_list(state, _PAGE + 1, None if after is None else str(after))
    head = RunList(total=toolset.workspace.run_count(state), runs=())
    rows = take((_run_row(run) for run in stored[:_PAGE]), RESULT_LIMIT - size(head) - 500)
    more = len(rows) < len(stored)
    return head.model_copy(
        update={
            "runs": tuple(rows),
            "truncated": more,
            "cursor": cursors.encode("run_list", arguments, rows[-1].run_id) if more else None,
            "next": f'run_show(run_id="{rows[0].run_id}")' if rows else "scan_status()",
        }
    )


def _run_row(run: "StoredRun") -> RunRow:
    return RunRow(
        run_id=run.run_id,
        state=run.state,
        procedure=line(run.job.procedure),
        untrusted_framework=line(run.job.framework),
        created=run.created,
        ended=run.ended,
    )


def _run_show(toolset: Toolset, run_id: str) -> Linked:
    stored = known_run(toolset, run_id)
    run, sealed = _opened(toolset, run_id)
    job = stored.job
    view = RunView(
        run_id=run_id,
        state=stored.state,
        outcome=stored.outcome,
        untrusted_reason=line(stored.reason),
        procedure=line(job.procedure),
        untrusted_framework=line(job.framework),
        created=stored.created,
        ended=stored.ended,
        sealed=sealed,
        manifest_sha256=stored.manifest_sha256,
        approval=job.approval,
        engine=job.engine,
        confinement=job.confinement,
        plants=tuple(texts(dict(enumerate(job.plants))).values()),
        untrusted_target=texts(job.target),
        untrusted_settings=texts(job.settings),
        untrusted_inputs=texts(job.inputs),
        exits=_exits(run),
        files=len(run.manifest) if run else 0,
        untrusted_log_tail=_log_tail(run),
        next=f'manifest_read(run_id="{run_id}")' if run else "run it again from the command line",
    )
    names = run.files("")[:LINKS] if run else []
    return Linked(view, [file_link(run_id, name, *run.manifest[name]) for name in names] if run else [])


def _opened(toolset: Toolset, run_id: str) -> tuple[RunFolder | None, str]:
    try:
        return sealed_run(toolset, run_id), "the manifest is there; each file is verified when it is read"
    except CheckError as error:
        return None, line(error.message, 400)


def _exits(run: RunFolder | None) -> tuple[ExitView, ...]:
    if run is None:
        return ()
    return tuple(
        ExitView(
            clean=one.clean, **one.model_dump(include={"rank", "code", "signal", "timed_out", "stopped"})
        )
        for one in run.exits()[:64]
    )


def _log_tail(run: RunFolder | None) -> str:
    name = "logs/rank-00000.err"
    if run is None or name not in run.manifest:
        return ""
    run.verified(name)
    with open_inside(run.path, name) as descriptor:
        raw = os.pread(descriptor, _LOG_TAIL, max(0, os.fstat(descriptor).st_size - _LOG_TAIL))
    return visible(raw.decode("utf-8", "replace"))


def _manifest(toolset: Toolset, run_id: str, prefix: str, cursor: str | None) -> Manifest:
    run = sealed_run(toolset, run_id)
    arguments = {"run_id": run_id, "prefix": prefix}
    skip = cursors.offset(cursor, "manifest_read", arguments)
    names = run.files(prefix)
    page = Manifest(total=len(names), files=())
    chosen = names[skip : skip + _FILES_PAGE]
    shown = take(
        (_file(run_id, name, *run.manifest[name]) for name in chosen), RESULT_LIMIT - size(page) - 500
    )
    more = skip + len(shown) < len(names)
    return page.model_copy(
        update={
            "files": tuple(shown),
            "truncated": more,
            "cursor": cursors.encode("manifest_read", arguments, skip + len(shown)) if more else None,
            "next": "narrow with prefix" if more else "",
        }
    )


def _file(run_id: str, name: str, sha256: str, size: int) -> FileView:
    return FileView(
        untrusted_name=line(name),
        sha256=sha256,
        size=size,
        uri=str(file_link(run_id, name, sha256, size).uri),
    )


def _environment(toolset: Toolset, run_id: str, rank: int, contains: str, cursor: str | None) -> Environment:
    run = sealed_run(toolset, run_id)
    name = f"records/rank-{rank:05d}/environment.json"
    if name not in run.manifest:
        ranks = [folder.rpartition("-")[2] for folder in run.rank_folders()]
        raise BadInput(
            f"rank {rank} of run {run_id} recorded no environment", f"ranks with records: {ranks[:20]}"
        )
    record = read_json(run.verified(name))
    record = record if isinstance(record, dict) else {}
    distributions = _distributions(record.pop("distributions", None), contains)
    arguments = {"run_id": run_id, "rank": rank, "contains": contains}
    skip = cursors.offset(cursor, "environment_read", arguments)
    facts = texts(_facts("", record), _FACTS_BUDGET)
    shown = distributions[skip : skip + _DISTRIBUTIONS_PAGE]
    more = skip + len(shown) < len(distributions)
    return Environment(
        total=len(distributions),
        truncated=more,
        cursor=cursors.encode("environment_read", arguments, skip + len(shown)) if more else None,
        next="narrow with contains" if more else "",
        untrusted_facts=facts,
        untrusted_distributions=tuple(shown),
    )


def _distributions(recorded: Any, contains: str) -> list[str]:
    known = [one for one in recorded if isinstance(one, dict)] if isinstance(recorded, list) else []
    named = [f"{one.get('name')}=={one.get('version')}" for one in known]
    return [line(text, 80) for text in sorted(named, key=str.lower) if contains.lower() in text.lower()]


def _facts(prefix: str, value: Any) -> dict[str, str]:
    """Every leaf of a JSON object by its dotted name."""
    if isinstance(value, dict):
        found: dict[str, str] = {}
        for name, inner in value.items():
            found |= _facts(f"{prefix}.{name}" if prefix else str(name), inner)
        return found
    return {prefix: json.dumps(value) if isinstance(value, list) else str(value)}
