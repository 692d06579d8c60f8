"""A finding: one root cause on one framework, with the claim that a verifier rebuilds and its evidence."""

from enum import IntEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from approvals.canonical import digest
from checks.verdict import Frozen, Place
from plumbline_mcp.findings.questions import Number, Where, Word
from plumbline_mcp.findings.states import State

FINDING_ID = r"^finding-[0-9]{4,12}$"
SPAN = r"^(bytes [0-9]{1,15}-[0-9]{1,15}|row [0-9]{1,12}|line [0-9]{1,12}|tensor [^\x00-\x1f]{1,300})$"

_Title = Annotated[str, Field(min_length=3, max_length=200)]
_Text = Annotated[str, Field(min_length=3, max_length=4000)]


class Pattern(IntEnum):
    """The paper's seven patterns."""

    TOKENS = 1
    """Tokens or loss masks differ from the release."""
    LAYERS = 2
    """Layers break under parallelism, packing or other kernels."""
    LENGTH = 3
    """Failures depend on sequence length."""
    UPDATES = 4
    """Optimizer updates are lost or misapplied."""
    RESUME = 5
    """Resumed state differs from the checkpoint."""
    CONVERSION = 6
    """Conversion alters the checkpoint."""
    LAUNCH = 7
    """Multi-node jobs hang or fail to launch."""

    @property
    def words(self) -> str:
        """What the pattern says."""
        return _WORDS[self]


_WORDS = {
    Pattern.TOKENS: "tokens or loss masks differ from the release",
    Pattern.LAYERS: "layers break under parallelism, packing or other kernels",
    Pattern.LENGTH: "failures depend on sequence length",
    Pattern.UPDATES: "optimizer updates are lost or misapplied",
    Pattern.RESUME: "resumed state differs from the checkpoint",
    Pattern.CONVERSION: "conversion alters the checkpoint",
    Pattern.LAUNCH: "multi-node jobs hang or fail to launch",
}


class Handle(Frozen):
    """A piece of evidence: a file as it was sealed, and where in it to look."""

    source: str = Field(max_length=100, description="id of the run that recorded it, or of a verdict")
    file: str = Field(max_length=1000, description="relative to the run; of a verdict: a path it rests on")
    span: str = Field(
        "", max_length=310, pattern=SPAN + "|^$", description="bytes 0-63, row 3, line 2, tensor NAME"
    )
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="of the whole file, as sealed")


class Claim(Frozen):
    """What a verifier has to find without being told."""

    check: str
    outcome: Literal["pass", "fail"] = "fail"
    code: str = Field("", max_length=80, description="kind of the problem; shown, not compared")
    place: Where = {}
    values: Annotated[dict[Word, Number], Field(max_length=100)] = Field(
        {}, description="stated values, by `<part>: <measurement>`; each of them has to be rebuilt"
    )
    measured: Annotated[dict[Word, Number], Field(max_length=500)] = Field(
        {}, description="what the verdict measured in the parts that fail; compared where it is rebuilt"
    )


class Proposal(Frozen):
    """What a proposer says; the server adds the id, the claim and the digests of the evidence."""

    pattern: Pattern = Field(description="1 to 7, the paper's")
    silent: bool = Field(description="true where the training does not stop and nothing is logged")
    title: _Title
    cause: _Text = Field(description="the root cause, and where it lies: framework, dependency or model")
    cause_place: str = Field(
        "", max_length=500, description="where the cause lies: file and line, or package"
    )
    fix: _Text = Field(description="the fix or the workaround")
    cheapest_check: str = Field(
        min_length=3, max_length=500, description="the cheapest check that catches it again"
    )
    also_check: tuple[Annotated[str, Field(min_length=3, max_length=500)], ...] = Field(
        (), max_length=20, description="other combinations that share the component"
    )
    verdicts: tuple[str, ...] = Field(
        min_length=1, max_length=20, description="verdicts it rests on; the first is the one that is rebuilt"
    )
    place: Place | None = Field(None, description="where it shows; by default the verdict's first problem")
    values: Annotated[dict[Word, Number], Field(max_length=100)] = Field(
        {}, description="measured values that the finding rests on, by `<part>: <measurement>`"
    )
    evidence: tuple[Handle, ...] = Field((), max_length=50, description="files with the span to look at")
    framework: str = Field("", max_length=200, description="whose it is, where the verdict names none")


class Finding(Frozen):
    """A stored finding. Everything but `state` is fixed when it is proposed."""

    format: Literal[1] = 1
    id: str = Field(pattern=FINDING_ID)
    pattern: Pattern
    silent: bool
    title: _Title
    place: Place = Place()
    cause: _Text
    cause_place: str = ""
    fix: _Text
    cheapest_check: str
    also_check: tuple[str, ...] = ()
    verdicts: tuple[str, ...]
    verdict_sha256: dict[str, str] = Field(description="digest of each verdict as it is stored")
    run_sha256: dict[str, str] = Field({}, description="digest of each sealed run's manifest")
    evidence: tuple[Handle, ...] = ()
    claim: Claim
    framework: str = ""
    proposer: str = Field(min_length=1, max_length=100)
    created: str = Field(description="UTC, ISO 8601")
    system_version: str = ""
    state: State = State.PROPOSED

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if set(self.verdicts) != set(self.verdict_sha256):
            raise ValueError("each verdict has its digest")
        return self

    @property
    def sha256(self) -> str:
        """Digest of what was proposed: everything but the state."""
        return content_digest(self)


def content_digest(finding: Finding) -> str:
    """SHA-256 (hex) of a finding's JSON without its state.

    Numbers are spelled as text, so that the digest does not hang on how a reader prints a float.
    """
    return digest(spelled(finding.model_dump(mode="json", exclude={"state"})))


def spelled(value: Any) -> Any:
    """The value with every float as its shortest exact text."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(name): spelled(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(inner) for inner in value]
    return value
