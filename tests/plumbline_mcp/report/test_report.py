"""The report: self-contained, complete, safe, the same for the same verdicts."""

import html
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, Verdict, part_of
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.states import State
from plumbline_mcp.report import write_report
from plumbline_mcp.report.plots import figures
from plumbline_mcp.report.summary import summarize
from plumbline_mcp.workspace import StoredVerdict
from tests.plumbline_mcp import handmade_verdicts
from tests.plumbline_mcp.findings.made import CLAIM

_VOID = {"meta", "br", "hr", "img", "input", "link"}


def stored(verdict: Verdict, number: int = 1) -> StoredVerdict:
    return StoredVerdict(
        verdict=verdict.model_copy(update={"id": f"{verdict.check}-{number:04d}"}),
        inputs={},
        created="2026-11-30T12:00:00.000+00:00",
        sha256="ab" * 32,
    )


def finding(identifier: str, verdict: str) -> Finding:
    return Finding(
        id=identifier,
        pattern=6,
        silent=True,
        title="the <b>router</b> is lost",
        cause="the exporter",
        fix="keep it",
        cheapest_check="check export",
        verdicts=(verdict,),
        verdict_sha256={verdict: "0" * 64},
        claim=CLAIM,
        proposer="me",
        created="2026-11-30T12:00:00+00:00",
        state=State.CONFIRMED,
    )


@pytest.fixture(scope="module")
def verdicts() -> list[StoredVerdict]:
    return [
        stored(handmade_verdicts.data_fail()),
        stored(handmade_verdicts.export_inconclusive()),
        stored(handmade_verdicts.image_pass()),
    ]


class Page(HTMLParser):
    """Text, tags and attributes of a page; `unclosed` holds what does not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(text)
        self.unclosed += self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(verdicts: list[StoredVerdict], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(verdicts, tmp_path_factory.mktemp("report")).html.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(verdicts: list[StoredVerdict], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(verdicts, tmp_path_factory.mktemp("report")).markdown.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_fetches_nothing(page: str) -> None:
    read = Page(page)
    assert read.unclosed == []
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page)
    assert {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in read.tags} == set()
    linked = [a.get("href") or a.get("xlink:href") for _, a in read.tags if {"href", "xlink:href"} & set(a)]
    ids = {attributes["id"] for _, attributes in read.tags if "id" in attributes}
    assert linked
    assert all(link and link.startswith("#") and link[1:] in ids for link in linked)


def test_ids_are_unique(page: str) -> None:
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_every_problem_measurement_and_digest_is_there(page: str, verdicts: list[StoredVerdict]) -> None:
    text = " ".join(" ".join(Page(page).text).split())
    for entry in verdicts:
        for _, problem in entry.verdict.problems():
            place = " ".join(f"{k} {v}" for k, v in problem.place.model_dump(exclude_none=True).items())
            assert place in text
            assert problem.message in text
            assert str(problem.found) in text
        assert all(e.sha256 in text for e in entry.verdict.evidence)
        assert all(injection.fault in text for injection in entry.verdict.injected)
    assert "0.0032" in text
    assert "17, 15 of them listed" in text


def test_markdown_lists_every_problem_one_table_row_each(
    markdown: str, verdicts: list[StoredVerdict]
) -> None:
    for entry in verdicts:
        for part, problem in entry.verdict.problems():
            row = next(
                line
                for line in markdown.splitlines()
                if f"{part}/{problem.code}" in line and f"| {problem.place} |".replace("_", r"\_") in line
            )
            cells = re.split(r"(?<!\\)\|", row)
            assert len(cells) == 7


def test_head_says_target_version_approval_and_stand_ins(page: str, markdown: str) -> None:
    for text in (page, html.unescape(markdown).replace("\\", "")):
        assert "tiny gpt-oss" in text
        assert "0.1.0-6c649354f00d+dev" in text
        assert "stands in for the official one" in text
    assert "nobody signed this scan" in page


def test_of_mixed_approvals_each_says_which_verdicts_it_is_of(
    verdicts: list[StoredVerdict], tmp_path: Path
) -> None:
    assert summarize(verdicts).approvals == ("none",)
    signed = verdicts[0].verdict.model_copy(update={"approval": "A-0123456789-1"})
    report = summarize([stored(signed), *verdicts[1:]])
    assert set(report.approvals) == {"A-0123456789-1: data-0001", "none: export-0001 and image-0001"}
    files = write_report([stored(signed), *verdicts[1:]], tmp_path)
    for path in files.html, files.markdown:
        assert "none: export-0001 and image-0001" in path.read_text(encoding="utf-8")


def test_findings_that_rest_on_a_verdict_are_told_with_their_state(
    verdicts: list[StoredVerdict], tmp_path: Path
) -> None:
    files = write_report(verdicts, tmp_path / "without")
    assert "root causes that rest on" not in files.html.read_text(encoding="utf-8")
    found = [finding("finding-0002", "export-0001"), finding("finding-0001", "export-0009")]
    files = write_report(verdicts, tmp_path / "with", findings=found)
    page, markdown = (path.read_text(encoding="utf-8") for path in (files.html, files.markdown))
    assert Page(page).unclosed == []
    for text in (" ".join(" ".join(Page(page).text).split()), html.unescape(markdown)):
        assert "finding-0002" in text
        assert "confirmed" in text
        assert "the <b>router</b> is lost" in text
        assert "rests on export-0001" in text
        assert "finding-0001" not in text
    assert "<b>router" not in page + markdown


def test_the_outcome_is_the_worst_and_says_which_check(verdicts: list[StoredVerdict]) -> None:
    report = summarize(verdicts)
    assert report.outcome is Outcome.FAIL
    assert report.headline == "Something is wrong: the data check failed."
    assert summarize(verdicts[2:]).headline == "Everything that the image check judged holds."
    assert summarize(verdicts[1:]).outcome is Outcome.INCONCLUSIVE


def test_what_failed_comes_first_and_its_problems_before_its_parts(
    page: str, markdown: str, verdicts: list[StoredVerdict]
) -> None:
    passed_first = summarize([verdicts[2], verdicts[1], verdicts[0]])
    assert [s.verdict.outcome.value for s in passed_first.sections] == ["fail", "inconclusive", "pass"]
    for text, problems, parts in (
        (page, "<h3>Problems", "<h3>Parts"),
        (markdown, "### Problems", "### Parts"),
    ):
        assert text.index(problems) < text.index(parts)


def test_a_planted_fault_and_what_is_left_out_are_said(verdicts: list[StoredVerdict], tmp_path: Path) -> None:
    files = write_report(verdicts, tmp_path, planted="a <fault>: found", left_out="3 verdicts are not here")
    for path in (files.html, files.markdown):
        text = path.read_text(encoding="utf-8")
        assert "Planted on purpose:" in text
        assert "a &lt;fault&gt;: found" in text
        assert "3 verdicts are not here" in text
    plain = write_report(verdicts, tmp_path)
    assert "Planted" not in plain.html.read_text(encoding="utf-8") + plain.markdown.read_text(
        encoding="utf-8"
    )


def test_facts_of_one_verdict_stay_with_it(verdicts: list[StoredVerdict]) -> None:
    report = summarize(verdicts)
    assert dict(report.target) == {"release": "tiny gpt-oss", "framework": "transformers 5.24.0"}
    other = verdicts[0].verdict.model_copy(update={"target": {"release": "another", "framework": "trl"}})
    mixed = summarize([stored(other), verdicts[1]])
    assert "release" not in dict(mixed.target)
    assert {dict(section.target)["release"] for section in mixed.sections} == {"another", "tiny gpt-oss"}


def test_what_was_not_judged_is_said(verdicts: list[StoredVerdict]) -> None:
    data, export, image = (section.limits for section in summarize(verdicts).sections)
    by_check = {"data": data, "export": export, "image": image}
    said = {section.verdict.check: " ".join(section.limits) for section in summarize(verdicts).sections}
    assert set(by_check) == set(said)
    assert "ids/packing does not apply here: rows are not packed." in said["data"]
    assert "ids/epochs is not evaluated: the dump has no epoch." in said["data"]
    assert "labels judged 388 of 400 rows, not all of them." in said["data"]
    assert "labels lists 12 of its 14 problems." in said["data"]
    assert "“a dropped tensor” was missed" in said["export"]
    assert said["image"] == ""


def test_hostile_text_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    files = write_report([stored(handmade_verdicts.hostile())], tmp_path)
    page = files.html.read_text(encoding="utf-8")
    read = Page(page)
    assert read.unclosed == []
    assert "script" not in {tag for tag, _ in read.tags}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for character in "\x1b\x9b\x07\r\u202e\u200b\U000e0041":
        assert character not in page
        assert character not in files.markdown.read_text(encoding="utf-8")
    assert r"\u{202e}" in page
    markdown = files.markdown.read_text(encoding="utf-8")
    assert "<script>" not in markdown
    assert not [line for line in markdown.splitlines() if line.startswith("✓ pass")]


def test_the_same_verdicts_give_the_same_bytes(verdicts: list[StoredVerdict], tmp_path: Path) -> None:
    first, second = write_report(verdicts, tmp_path / "a"), write_report(verdicts, tmp_path / "b")
    assert first.html.read_bytes() == second.html.read_bytes()
    assert first.markdown.read_bytes() == second.markdown.read_bytes()


def test_a_page_that_cannot_be_placed_leaves_nothing_behind(
    verdicts: list[StoredVerdict], tmp_path: Path
) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(PlumblineError, match="cannot write the report"):
        write_report(verdicts[2:], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_no_verdict_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write_report([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_figures_are_drawn_only_where_they_say_something(verdicts: list[StoredVerdict]) -> None:
    drawn = {s.verdict.check: figures(s) for s in summarize(verdicts).sections}
    assert [figure.caption.split(" ")[0] for figure in drawn["data"]] == ["Where"]
    assert len(drawn["export"]) == 2
    assert drawn["image"] == []


def test_figures_follow_the_pages_colours_and_keep_their_text(verdicts: list[StoredVerdict]) -> None:
    bounds, layers = next(figures(s) for s in summarize(verdicts).sections if s.verdict.check == "export")
    for svg in (bounds.svg, layers.svg):
        ElementTree.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314 - our own drawing
        assert "var(--" in svg
        assert not re.search(r"#0[0-9]0[0-9]0[0-9]", svg)
        assert 'aria-hidden="true"' in svg
    assert "largest relative difference" in bounds.svg
    assert "mlp.down_proj.weight" in layers.svg
    assert layers.svg.count("var(--undecided)") >= 12


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, float("inf"), float("nan")])
def test_odd_numbers_do_not_stop_a_report(value: float, tmp_path: Path) -> None:
    part = Part(
        name="values",
        outcome=Outcome.FAIL,
        measurements=(Measurement(name="odd", value=value, bound=1e-3), Measurement(name="n", value=3)),
    )
    verdict = Verdict(check="export", outcome=Outcome.FAIL, reason="odd", parts=(part,))
    page = write_report([stored(verdict)], tmp_path).html.read_text(encoding="utf-8")
    assert "values: odd" in page


def test_a_verdict_without_parts_has_a_page(tmp_path: Path) -> None:
    verdict = Verdict(check="data", outcome=Outcome.NOT_EVALUATED, reason="the dump has no labels")
    page = write_report([stored(verdict)], tmp_path).html.read_text(encoding="utf-8")
    assert "Nothing was judged: the dump has no labels." in page


def test_contrast_of_every_text_colour_is_readable() -> None:
    """WCAG 2: 4.5 to 1 for text, in both colour schemes, on the page, the card and its own tint."""
    css = (Path(__file__).parents[3] / "templates" / "report" / "report.css").read_text()
    schemes = re.findall(r":root \{([^}]*)\}", css)
    assert len(schemes) == 3
    for scheme in schemes:
        colour = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", scheme))
        for name in ("ink", "muted", "accent", "pass", "fail", "undecided", "missing"):
            for ground in ("page", "card", f"{name}-soft"):
                if ground in colour:
                    assert contrast(colour[name], colour[ground]) >= 4.5, (name, ground)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_kind_counts_what_is_not_listed(tmp_path: Path) -> None:
    wrong = Problem(code="stop-unlabelled", message="no stop token is labelled")
    part = part_of(
        "stop",
        [wrong.model_copy(update={"place": Place(row=row)}) for row in range(7473)],
        coverage=Coverage(judged=7473, total=7473, unit="rows"),
    )
    verdict = Verdict(check="data", outcome=Outcome.FAIL, reason="stop", parts=(part,))
    files = write_report([stored(verdict)], tmp_path)
    text = " ".join(" ".join(Page(files.html.read_text(encoding="utf-8")).text).split())
    assert "× 7,473, 50 listed" in text
    assert "7,473 of 7,473 rows" in text
    assert "stop/stop-unlabelled × 7,473, 50 listed" in files.markdown.read_text(encoding="utf-8")
