"""A rerun of a mended job takes the place of its failure; nothing else does."""

from pathlib import Path

import pytest

from checks.records.runs import Job
from checks.verdict import Evidence, Outcome
from plumbline_mcp.report import write_report
from plumbline_mcp.report.history import standing
from plumbline_mcp.report.summary import summarize
from plumbline_mcp.workspace import StoredVerdict
from tests.plumbline_mcp.report.test_subjects import stored

FAIL, PASS = Outcome.FAIL, Outcome.PASS
RUNS = "/home/runs/"
JOBS = {
    RUNS + "rows-0001": {"settings": {"packing": "none"}, "interpreter": "/old/bin/python"},
    RUNS + "rows-0002": {"settings": {"packing": "none"}, "interpreter": "/new/bin/python"},
    RUNS + "rows-0003": {"inputs": {"model": "/m/tiny", "workload": "/w/other.jsonl"}},
    RUNS + "rows-0004": {"framework": "other"},
    RUNS + "rows-0005": {"procedure": "dry_run"},
    RUNS + "rows-0007": {"settings": {"packing": "wrapped"}},
}


def job(path: str, **fields: object) -> Job:
    known = {
        "run_id": path.rpartition("/")[2],
        "procedure": "rows",
        "framework": "transformers",
        "inputs": {"model": "/m/tiny", "workload": "/w/train.jsonl"},
    }
    return Job.model_validate(known | fields)


JOB_OF = {path: job(path, **fields) for path, fields in reversed(JOBS.items())}
"""Newest first."""


def counted(*oldest_first: StoredVerdict) -> dict[str, list[str]]:
    """The ids that count, each with the ids it took the place of."""
    kept = standing(oldest_first[::-1], JOB_OF)
    return {one.stored.verdict.id: [each.verdict.id for each in one.earlier] for one in kept}


def proven(verdict: StoredVerdict, **digests: str) -> StoredVerdict:
    """With evidence of the content of what was given."""
    paths = {"workload": "/w/train.jsonl", "release": "/m/tiny/tokenizer.json", "rows": "/r/a.jsonl"}
    evidence = tuple(
        Evidence(path=paths[role], sha256=digest * 64, size=1, role=role) for role, digest in digests.items()
    )
    said = verdict.verdict.model_copy(update={"evidence": evidence})
    return verdict.model_copy(update={"verdict": said})


def test_a_rerun_of_a_mended_job_takes_the_place_of_its_failure() -> None:
    failed, passed = stored(1, RUNS + "rows-0001", FAIL), stored(2, RUNS + "rows-0002")
    assert counted(failed, passed) == {"data-0002": ["data-0001"]}
    assert counted(stored(1, RUNS + "rows-0001"), stored(2, RUNS + "rows-0002", FAIL)) == {
        "data-0002": ["data-0001"]
    }


@pytest.mark.parametrize("other", ["rows-0003", "rows-0004", "rows-0005", "rows-0006", "rows-0007"])
def test_a_run_of_another_configuration_hides_no_failure(other: str) -> None:
    failed, passed = stored(1, RUNS + "rows-0001", FAIL), stored(2, RUNS + other)
    assert counted(failed, passed) == {"data-0001": [], "data-0002": []}


def test_an_old_run_that_is_judged_once_more_hides_no_failure_of_the_run_after_it() -> None:
    old, new = stored(1, RUNS + "rows-0001"), stored(2, RUNS + "rows-0002", FAIL)
    again = stored(3, RUNS + "rows-0002", FAIL), stored(4, RUNS + "rows-0001")
    assert counted(old, new, *again) == {"data-0003": ["data-0002", "data-0004", "data-0001"]}


def test_other_rows_another_model_or_option_hide_no_failure() -> None:
    failed = stored(1, "/r/a.jsonl", FAIL)
    for passed in (
        stored(2, "/r/b.jsonl"),
        stored(2, "/r/a.jsonl", model="/m/large"),
        stored(2, "/r/a.jsonl", supervise="last"),
        stored(2, "/r/a.jsonl", workload="/w/easy.jsonl"),
    ):
        assert counted(failed, passed) == {"data-0001": [], "data-0002": []}
    assert counted(failed, stored(2, "/r/a.jsonl")) == {"data-0002": ["data-0001"]}


def test_an_input_with_other_content_hides_no_failure() -> None:
    failed = proven(stored(1, "/r/a.jsonl", FAIL), workload="a", release="b", rows="c")
    easier = proven(stored(2, "/r/a.jsonl"), workload="d", release="b", rows="c")
    assert counted(failed, easier) == {"data-0001": [], "data-0002": []}
    mended = proven(stored(3, "/r/a.jsonl"), workload="a", release="b", rows="e")
    assert counted(failed, easier, mended) == {"data-0002": [], "data-0003": ["data-0001"]}


def test_a_failure_on_a_file_that_is_another_one_by_now_stays_and_says_so(tmp_path: Path) -> None:
    failed = proven(stored(1, "/r/a.jsonl", FAIL, supervise="last"), workload="a", rows="c")
    same, other = (
        proven(stored(2, "/r/a.jsonl"), workload="a", rows="c"),
        proven(stored(3, "/r/a.jsonl"), workload="a", rows="e"),
    )

    def since(*oldest_first: StoredVerdict) -> dict[str, str]:
        return {one.stored.verdict.id: one.since for one in standing(oldest_first[::-1], JOB_OF)}

    assert since(failed, same) == {"data-0001": "", "data-0002": ""}
    assert since(failed, same, other) == {"data-0001": "data-0003", "data-0003": ""}
    assert since(failed, other, same)["data-0001"] == ""
    assert since(other, failed)["data-0001"] == ""
    files = write_report([other, failed], tmp_path, since=since(failed, other))
    for page in (files.html, files.markdown):
        assert "has other content since, as data-0003 found it" in page.read_text(encoding="utf-8")
    again = proven(stored(4, "/r/a.jsonl", supervise="last"), workload="a", rows="e")
    assert counted(failed, other, again) == {"data-0003": [], "data-0004": ["data-0001"]}


def test_a_verdict_without_evidence_is_on_the_subject_of_its_paths() -> None:
    crashed = stored(1, "/r/a.jsonl", Outcome.INCONCLUSIVE)
    passed = proven(stored(2, "/r/a.jsonl"), workload="a")
    assert counted(crashed, passed) == {"data-0002": ["data-0001"]}


@pytest.mark.parametrize("undecided", [Outcome.INCONCLUSIVE, Outcome.NOT_EVALUATED])
def test_what_decided_nothing_takes_the_place_of_no_failure(undecided: Outcome) -> None:
    path = "/r/a.jsonl"
    failed, lost = stored(2, path, FAIL), stored(3, path, undecided)
    assert counted(stored(1, path), failed, lost) == {"data-0002": ["data-0001"], "data-0003": []}
    assert counted(stored(1, path), lost) == {"data-0003": ["data-0001"]}
    assert counted(failed, lost, stored(4, path)) == {"data-0004": ["data-0003", "data-0002"]}


def test_the_outcome_follows_the_newest_and_both_pages_say_what_it_replaced(tmp_path: Path) -> None:
    failed, passed = stored(1, RUNS + "rows-0001", FAIL), stored(2, RUNS + "rows-0002")
    then, now = ({"packing": value, "template": "the release"} for value in ("wrapped", "none"))
    failed = failed.model_copy(
        update={"verdict": failed.verdict.model_copy(update={"run_id": "rows-0001", "settings": then})}
    )
    passed = passed.model_copy(
        update={"verdict": passed.verdict.model_copy(update={"run_id": "rows-0002", "settings": now})}
    )
    (kept,) = standing([passed, failed], JOB_OF)
    earlier = {kept.stored.verdict.id: kept.earlier}
    report = summarize([kept.stored], earlier=earlier)
    assert report.outcome is PASS
    (told,) = report.sections[0].earlier
    assert told.changed == 'run rows-0001, now rows-0002, packing "wrapped", now "none"'
    said = "1 earlier verdict does not count: a newer one judged the same subject. Failed were data-0001."
    assert report.superseded == said
    files = write_report([kept.stored], tmp_path, earlier=earlier)
    for page in (files.html, files.markdown):
        text = page.read_text(encoding="utf-8")
        assert said in text
        assert "Earlier verdicts on the same subject" in text
        assert "data-0001" in text
    assert summarize([passed]).superseded == ""
