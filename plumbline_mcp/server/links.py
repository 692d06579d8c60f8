"""Links to raw records: the whole verdict, and the sealed files of a run, with size and digest."""

from urllib.parse import quote

from mcp.types import ResourceLink

from approvals.visible import visible_line
from checks.verdict import Verdict

LINKS = 10
"""Links beside one answer; the resource of the verdict or the manifest names all."""


def verdict_uri(verdict_id: str) -> str:
    """Where the whole verdict is read."""
    return f"plumbline://verdicts/{verdict_id}"


def file_uri(run_id: str, name: str) -> str:
    """Where a sealed file of a run is read."""
    return f"plumbline://runs/{run_id}/files/{quote(name)}"


def verdict_links(verdict: Verdict) -> list[ResourceLink]:
    """The whole verdict as a link."""
    return [
        ResourceLink(
            uri=verdict_uri(verdict.id),
            name=f"{verdict.id}.json",
            description="the whole verdict: every listed problem, all evidence with digests",
            mime_type="application/json",
        )
    ]


def file_link(run_id: str, name: str, sha256: str, size: int) -> ResourceLink:
    """One sealed file."""
    return ResourceLink(
        uri=file_uri(run_id, name),
        name=visible_line(name, 120),
        description=f"sha256 {sha256}; untrusted content",
        mime_type="application/octet-stream",
        size=size,
    )
