"""What a verifier is asked and what it answers: the only words that pass between the server and a verifier.

A question comes with a folder. Everything that it names lies in there, under neutral names::

    FOLDER/
      question.json        the question
      record-1/            a sealed run (layout: docs/run-folder.md), or the files that it left behind
      files/<input>        what the records are judged against: the release, the workload, a connection pack;
                           a file, or a folder

Of a question on the check ``image`` the answer of the job's interpreter lies in ``record-1/probe.json``.

Answers are untrusted: both models refuse unknown fields, and every text and list in them is bounded.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

QUESTION_FILE = "question.json"
MAX_QUESTION_BYTES = 2**20
MAX_SUBMISSION_BYTES = 16 * 2**20


def _below(path: str) -> str:
    """The path itself when it is relative and spelled in one way. Raises `ValueError`."""
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path[:80]!r} is no relative path below the folder")
    return path


RelativePath = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_below)]
"""A path below the question's folder. A link on the way may still lead out: open without following links."""

Word = Annotated[str, Field(min_length=1, max_length=300)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Where = Annotated[dict[Word, int | Annotated[str, Field(max_length=1000)]], Field(max_length=20)]
"""A place: the names of `checks.verdict.Place` that apply (row, token, tensor, rank, step) with values."""


class _Bounded(BaseModel):
    """Immutable; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(_Bounded):
    """What is to be judged anew. It says nothing about what anybody found."""

    check: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$", description="the check whose question is asked")
    text: str = Field("", max_length=4000, description="the question, its reference and its rule in words")
    records: tuple[RelativePath, ...] = Field((), max_length=64, description="record-1, record-2, ...")
    files: dict[Word, RelativePath] = Field(
        {}, max_length=64, description="input to path: model, workload, framework (a pack's folder), ..."
    )
    inputs: dict[Word, JsonValue] = Field(
        {},
        max_length=64,
        description="the check's arguments as they were given; a path stands as its path in this folder",
    )
    values: tuple[Word, ...] = Field(
        (),
        max_length=500,
        description="names of the values that are asked for: `<part>: <measurement>`; give those you can",
    )


class RebuiltProblem(_Bounded):
    """One thing that does not hold, as the verifier sees it."""

    code: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,79}$", description="kebab-case kind of problem")
    where: Where = {}
    value: Number | Annotated[str, Field(max_length=1000)] | None = None
    bound: Number | Annotated[str, Field(max_length=1000)] | None = None


class Submission(_Bounded):
    """A verifier's answer."""

    outcome: Literal["pass", "fail", "inconclusive"]
    reason: str = Field("", max_length=4000, description="one sentence; of inconclusive: what is missing")
    values: Annotated[dict[Word, Number], Field(max_length=1000)] = Field(
        {}, description="by the names that the question asks for"
    )
    place: Where = Field({}, description="where the fault lies: the first problem that has to be mended")
    problems: Annotated[tuple[RebuiltProblem, ...], Field(max_length=10_000)] = Field(
        (), description="every problem found, the first of each kind before the rest"
    )
