"""A verdict and a job with something in every kind of field, for tests that store them."""

from checks.records.runs import Job
from checks.verdict import Coverage, Evidence, Measurement, Outcome, Place, Problem, Verdict, part_of


def verdict(check: str = "data", outcome: Outcome = Outcome.PASS) -> Verdict:
    part = part_of(
        "labels",
        [Problem(code="labels-shifted", message="off by one", place=Place(row=3, token=7))],
        coverage=Coverage(judged=5, total=6, unit="rows"),
        measurements=(Measurement(name="share", value=0.25, bound=0, unit="1"),),
    )
    return Verdict(
        check=check,
        outcome=outcome,
        reason="ü",
        parts=(part,),
        evidence=(Evidence(path="/a", sha256="0" * 64, size=1, role="rows"),),
        settings={"columns": {"a": ["b", None, 1.5]}},
    )


def job(run_id: str = "rows-0001") -> Job:
    return Job(run_id=run_id, procedure="rows", framework="transformers")
