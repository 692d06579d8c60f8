"""The figures of a report, drawn only where they say something; SVG that follows the page's colours.

Colours are drawn as fixed stand-ins and replaced by the page's CSS variables, so one drawing serves light,
dark and print. Text stays text.
"""

import io
import math
import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from approvals.visible import visible_line
from checks.verdict import Measurement, Outcome, Problem
from plumbline_mcp.report.summary import Section

_COLOURS = {
    "#010203": "var(--ink)",
    "#020304": "var(--muted)",
    "#030405": "var(--line)",
    "#040506": "var(--fail)",
    "#050607": "var(--pass)",
    "#060708": "var(--undecided)",
    "#070809": "var(--accent)",
}
_INK, _MUTED, _LINE, _FAIL, _PASS, _UNDECIDED, _ACCENT = _COLOURS
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_WIDTH = 9.2
"""Inches, at 72 points each: the width of the page's column."""
_MOST_LABELS = 24
_FEWEST_PLACES = 3
"""Below so many places, a list says it better than a map."""
_DRAWN_RATIOS = (1e-6, 1e6)
"""What is smaller or larger is drawn at the edge; the table says the value."""
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "legend.frameon": False,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Figure:
    """A drawing with the sentence that says what it shows (also to a screen reader)."""

    caption: str
    svg: Markup


def figures(section: Section) -> list[Figure]:
    """The drawings of one verdict."""
    drawn = (
        _bounds(section),
        _rows(section),
        _layers(section),
    )
    return [figure for figure in drawn if figure is not None]


def _bounds(section: Section) -> Figure | None:
    """Each measured value as a share of its bound, on a log axis with the bound at 1."""
    found = [(part, m) for part, m in section.measurements if _ratio(m) is not None][:_MOST_LABELS]
    if not found:
        return None
    least, most = _DRAWN_RATIOS
    ratios = [min(max(_ratio(m) or 0.0, least), most) for _, m in found]

    from matplotlib.ticker import NullLocator

    def draw(axes: Any) -> None:
        heights = range(len(found))
        for height, ratio in zip(heights, ratios, strict=True):
            colour = _FAIL if ratio > 1 else _PASS
            axes.plot([least / 10, ratio], [height, height], color=_LINE, linewidth=1)
            axes.plot([ratio], [height], marker="X" if ratio > 1 else "o", color=colour, markersize=7)
        axes.axvline(1, color=_INK, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(min(min(ratios) / 3, 0.01), max(max(ratios) * 3, 10))
        axes.set_yticks(heights, [_label(f"{part}: {m.name}") for part, m in found])
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlabel("measured ÷ bound (a cross right of the dashed line breaks the rule)")

    caption = "Measured values as a share of their bounds; the dashed line is the bound."
    return Figure(caption, _drawn(draw, height=0.9 + 0.28 * len(found), seed=section.verdict.id + "bounds"))


def _rows(section: Section) -> Figure | None:
    """Problems by row and token: a stripe, a column or a cloud each points to another cause."""
    found = [
        (group.code, problem)
        for group in section.groups
        for problem in group.problems
        if _row(problem) is not None
    ]
    level = next(
        (n for n in ("token", "turn", "epoch") if any(_at(p, n) is not None for _, p in found)), None
    )
    places = [(code, p) for code, p in found if level is None or _at(p, level) is not None]
    if len({_row(problem) for _, problem in places}) < _FEWEST_PLACES:
        return None
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Any) -> None:
        for code, marker in zip(dict.fromkeys(code for code, _ in places), _MARKERS * 8, strict=False):
            chosen = [problem for met, problem in places if met == code]
            axes.scatter(
                [_row(problem) for problem in chosen],
                [_at(problem, level) or 0 if level else 0 for problem in chosen],
                marker=marker,
                s=34,
                facecolors="none",
                edgecolors=_FAIL if chosen[0].outcome is Outcome.FAIL else _UNDECIDED,
                linewidths=1.4,
                label=_label(code),
            )
        axes.set_xlabel("row of the workload")
        axes.set_ylabel(level or "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        if level is None:
            axes.set_yticks([])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handletextpad=0.2)

    caption = f"Where {len(places)} of the listed problems are: row of the workload by {level or 'kind'}."
    return Figure(caption, _drawn(draw, height=2.9, seed=section.verdict.id + "rows"))


def _layers(section: Section) -> Figure | None:
    """Problems by tensor kind and layer: one column is a layer, one row is a kind of tensor."""
    places = [
        (_kind(problem.place.tensor), _layer(problem.place.tensor), group.outcome)
        for group in section.groups
        for problem in group.problems
        if problem.place.tensor
    ]
    kinds = list(dict.fromkeys(kind for kind, _, _ in places))
    if len(places) < _FEWEST_PLACES or len(kinds) > _MOST_LABELS or not any(la >= 0 for _, la, _ in places):
        return None

    def draw(axes: Any) -> None:
        for kind, layer, outcome in places:
            failed = outcome is Outcome.FAIL
            colour, marker = (_FAIL, "s") if failed else (_UNDECIDED, "D")
            axes.plot([max(layer, -1)], [kinds.index(kind)], marker=marker, color=colour, markersize=8)
        axes.set_yticks(range(len(kinds)), [_label(kind) for kind in kinds])
        axes.set_ylim(len(kinds) - 0.5, -0.5)
        layers = sorted({layer for _, layer, _ in places})
        axes.set_xticks(
            layers[:_MOST_LABELS], ["none" if la < 0 else str(la) for la in layers[:_MOST_LABELS]]
        )
        axes.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)
        axes.set_xlabel("layer")

    caption = "Where the listed problems with a tensor are: kind of tensor by layer."
    return Figure(caption, _drawn(draw, height=0.9 + 0.3 * len(kinds), seed=section.verdict.id + "layers"))


def _drawn(draw: Any, height: float, seed: str) -> Markup:
    """Draw into a fresh figure with our own style, whatever the user's matplotlibrc says."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE | {"svg.hashsalt": seed})
        figure = Canvas(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.tick_params(length=0)
        axes.grid(axis="x", color=_LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes)
        target = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    return Markup(_inlined(target.getvalue()))  # noqa: S704 - matplotlib escapes the labels


def _inlined(svg: str) -> str:
    """The drawing without what an HTML page needs not, in the page's colours and fonts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1width="100%" aria-hidden="true"', svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    used = set(re.findall(r'#([\w.-]+)[")]', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = svg.replace("'DejaVu Sans'", "inherit")
    for stand_in, variable in _COLOURS.items():
        svg = svg.replace(stand_in, variable)
    return svg


def _ratio(measurement: Measurement) -> float | None:
    value, bound = measurement.value, measurement.bound
    if isinstance(value, str | None) or isinstance(bound, str | None) or bound <= 0:
        return None
    ratio = float(value) / float(bound)
    return None if math.isnan(ratio) else ratio


def _row(problem: Problem) -> int | None:
    return problem.place.row if problem.place.row is not None else problem.place.sequence


def _at(problem: Problem, name: str) -> int | None:
    found: int | None = getattr(problem.place, name)
    return found


def _layer(tensor: str | None) -> int:
    numbers = re.findall(r"\.(\d+)\.", tensor or "")
    return int(numbers[0][:9]) if numbers else -1


def _kind(tensor: str | None) -> str:
    return re.sub(r"\.\d+\.", ".*.", tensor or "")


def _label(text: str) -> str:
    shown = visible_line(text, 200)
    return shown if len(shown) <= 52 else f"{shown[:20]}…{shown[-31:]}"
