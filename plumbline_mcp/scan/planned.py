"""A job as a task or a plan names it: rendered, by digest, with its cost. Nothing of it has run."""

from collections.abc import Iterable

from pydantic import Field, JsonValue

from approvals.canonical import digest
from checks.references.packs import load_pack
from checks.verdict import Frozen
from plumbline_mcp.engines.contents import Contents
from plumbline_mcp.engines.job_digest import (
    ENVIRONMENT,
    TEXT,
    JobContent,
    interpreter_digests,
    job_content,
    job_text,
    readable,
)
from plumbline_mcp.engines.launching import Launch, Prepared, prepare
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.costs import Cost, cost_of
from plumbline_mcp.scan.scanning import Subject
from plumbline_mcp.workspace import Workspace

ATTEMPTS = 2
"""By default so often each job may be started, so that a node failure at night needs no new signature."""


class PlannedJob(Frozen):
    """One job: what is launched, what that is by content, and what it costs."""

    name: str
    changed: dict[str, JsonValue] = Field({}, description="settings that the recipe has otherwise")
    launch: Launch
    content: JobContent
    digest: str
    cost: Cost


class Rendered(Frozen):
    """Jobs with their texts; jobs whose text is the same share it."""

    jobs: tuple[PlannedJob, ...]
    texts: dict[str, str] = Field(description="job text by its digest, as the jobs' contents name it")

    def job(self, name: str) -> PlannedJob:
        """The job of that name, or whose digest begins so. Raises `UsageError` with those there are."""
        found = [job for job in self.jobs if job.name == name]
        found = found or [job for job in self.jobs if len(name) >= 12 and job.digest.startswith(name)]
        if len(found) != 1:
            known = ", ".join(job.name for job in self.jobs[:20]) or "none"
            more = f" and {len(self.jobs) - 20} more" if len(self.jobs) > 20 else ""
            raise UsageError(f"the ticket covers no job {name[:80]!r}", f"its jobs are: {known}{more}")
        return found[0]

    def unique(self) -> "Rendered":
        """Without the jobs that are an earlier one under another name."""
        first = {job.digest: job for job in reversed(self.jobs)}
        return Rendered(jobs=tuple(job for job in self.jobs if first[job.digest] is job), texts=self.texts)

    @property
    def node_millihours(self) -> int:
        """What one attempt of each job is expected to take."""
        return sum(job.cost.node_millihours for job in self.jobs)

    @property
    def most_node_millihours(self) -> int:
        """What one attempt of each job can take."""
        return sum(job.cost.most_node_millihours for job in self.jobs)

    @property
    def uses(self) -> tuple[str, ...]:
        """The digests that are signed."""
        return tuple(job.digest for job in self.jobs)


class Renderer:
    """Renders the jobs of one subject."""

    def __init__(self, workspace: Workspace, subject: Subject, *, built: bool = True) -> None:
        """``built=False``: the subject's environment is not built yet."""
        self._workspace, self._subject, self._built = workspace, subject, built
        self._pack = load_pack(subject.framework)
        self._contents = Contents(workspace.home)

    def environment(self) -> str:
        """One digest of the interpreter. Raises `UsageError` for what cannot be read."""
        found = readable(lambda: interpreter_digests(self._subject.python, self._contents))
        return found.get(ENVIRONMENT) or digest(found)

    def jobs(self, wanted: Iterable[tuple[str, str, dict[str, JsonValue]]]) -> Rendered:
        """The jobs of (name, procedure, changed settings). Raises `UsageError`, `BadInput`."""
        jobs, texts = [], {}
        for name, procedure, changed in wanted:
            launch = self._subject.launch(self._pack, procedure)
            launch = launch.model_copy(update={"settings": launch.settings | changed})
            prepared = prepare(launch, "unnamed", built=self._built)
            job = planned_job(self._workspace, name, changed, prepared, self._contents)
            texts[job.content.digests[TEXT]] = job_text(prepared)
            jobs.append(job)
        return Rendered(jobs=tuple(jobs), texts=texts)


def planned_job(
    workspace: Workspace,
    name: str,
    changed: dict[str, JsonValue],
    prepared: Prepared,
    contents: Contents | None = None,
) -> PlannedJob:
    """A prepared launch as it would be signed. Raises `UsageError` for what cannot be read."""
    content = job_content(prepared, contents or Contents(workspace.home))
    return PlannedJob(
        name=name,
        changed=changed,
        launch=prepared.launch,
        content=content,
        digest=content.digest,
        cost=cost_of(workspace, prepared),
    )


def subjects(rendered: Rendered, further: dict[str, str]) -> dict[str, str]:
    """What every job has alike, by digest: model, workload, pack, interpreter; and what is named further."""
    found: dict[str, set[str]] = {}
    for job in rendered.jobs:
        for name, sha256 in job.content.digests.items():
            found.setdefault(name, set()).add(sha256)
    return {name: one for name, digests in found.items() if len(digests) == 1 for one in digests} | further
