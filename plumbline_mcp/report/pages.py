"""Renders the two pages from ``templates/report``: every text of a record is escaped on its way out."""

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import JsonValue

import checks
from approvals.visible import visible, visible_line
from checks.verdict import Caught, Outcome, Place
from plumbline_mcp.report.plots import figures
from plumbline_mcp.report.summary import Report

TEMPLATES = Path(checks.__file__).parent.parent / "templates" / "report"

_LIMIT = 2000
"""Characters shown of one text; the stored verdict holds the whole."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~])")
_SIGNS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NOT_EVALUATED: "–",
    Caught.CAUGHT: "✓",
    Caught.MISSED: "✗",
    Caught.NOT_APPLICABLE: "–",
}


def render_html(report: Report) -> str:
    """The HTML page: one file, no script, nothing fetched."""
    environment = _environment(autoescape=True, finalize=_html_text)
    drawn = {section.verdict.id: figures(section) for section in report.sections}
    style = Markup((TEMPLATES / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return environment.get_template("report.html.j2").render(report=report, figures=drawn, style=style)


def render_markdown(report: Report) -> str:
    """The Markdown page."""
    environment = _environment(autoescape=False, finalize=_markdown_text)
    text = environment.get_template("report.md.j2").render(report=report)
    return re.sub(r"\n{3,}", "\n\n", text)


def _environment(*, autoescape: bool, finalize: Any) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=autoescape,  # noqa: S701 - off for Markdown alone, which has its own escaping
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"sign": _SIGNS.__getitem__, "words": _words, "size": _size, "number": _number}
    environment.filters |= {"fields": _fields, "plain": _plain, "amount": "{:,}".format}
    return environment


def _html_text(value: Any) -> Any:
    """Show control and direction characters; autoescape then escapes the markup."""
    return value if isinstance(value, Markup) else visible(_text(value), _LIMIT)


def _markdown_text(value: Any) -> str:
    """Escape what Markdown and HTML would obey; one line, so that a table cell stays a cell."""
    text = visible_line(_text(value), _LIMIT).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _words(value: str) -> str:
    return str(value).replace("_", " ")


def _fields(place: Place) -> list[tuple[str, object]]:
    """The fields that say where, by name."""
    return list(place.model_dump(exclude_none=True).items())


def _plain(value: JsonValue) -> str:
    """A setting: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _size(count: int) -> str:
    """Bytes in the unit one reads, e.g. ``1.5 MiB``."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _number(value: Any) -> str:
    """A measured value: at most six significant digits for floats."""
    return f"{value:.6g}" if isinstance(value, float) else str("" if value is None else value)
