"""Renders a report and writes it: no page is ever half written."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from checks.verdict import Frozen
from plumbline_mcp.errors import PlumblineError
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.temporaries import sweep_temporaries, temporary_beside
from plumbline_mcp.workspace import StoredVerdict


class ReportFiles(Frozen):
    """Where a report was written."""

    html: Path
    markdown: Path


def write_report(
    stored: Sequence[StoredVerdict],
    folder: Path,
    *,
    planted: str = "",
    left_out: str = "",
    earlier: Mapping[str, Sequence[StoredVerdict]] = MappingProxyType({}),
    trust: str = "",
    findings: Iterable[Finding] = (),
    since: Mapping[str, str] = MappingProxyType({}),
) -> ReportFiles:
    """Write ``report.html`` and ``report.md`` into ``folder`` (made when missing).

    Everything else is as for `summarize`. The same verdicts and findings give the same bytes.
    Raises `PlumblineError` when nothing can be written there.
    """
    from plumbline_mcp.report.pages import (
        render_html,
        render_markdown,
    )  # jinja2 and matplotlib load only here
    from plumbline_mcp.report.summary import summarize

    report = summarize(stored, planted, left_out, earlier, trust, findings, since)
    folder = folder.expanduser().absolute()
    files = ReportFiles(html=folder / "report.html", markdown=folder / "report.md")
    pages = {files.html: render_html(report), files.markdown: render_markdown(report)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep_temporaries(folder)
        _write(pages)
    except OSError as error:
        raise PlumblineError(
            f"cannot write the report into {folder}: {error.strerror}",
            "free space there, or name another folder with --output",
        ) from error
    return files


def _write(pages: dict[Path, str]) -> None:
    """Write every page to a temporary file beside its path; rename only when all of them are there."""
    with ExitStack() as unwind:
        written = {path: _temporary(path, text, unwind) for path, text in pages.items()}
        for path, temporary in written.items():
            temporary.replace(path)


def _temporary(path: Path, text: str, unwind: ExitStack) -> Path:
    temporary = temporary_beside(path)
    unwind.callback(temporary.unlink, missing_ok=True)
    with temporary.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    return temporary
