"""What is asked for (`Request`) and what a reviewer signs about it (`Statement`).

A statement names everything by content: what is to run, on which files, how often, at which cost, under
which policy, and the state of the audit log that its signer saw. It holds integers and strings only, so
that its canonical JSON is the same bytes everywhere.
"""

import json
from enum import StrEnum
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from approvals.canonical import canonical, digest
from approvals.errors import Refused

MAX_CONTENT = 2**20
"""Bytes of the canonical JSON of a request's content."""
MAX_REASON = 2000
"""Characters of the reason for a decision."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TicketId = Annotated[str, Field(pattern=r"^A-[0-9a-f]{10}-[1-9][0-9]{0,8}$")]
Principal = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
"""Who asks or signs. No comma, blank, ``*``, ``?`` or ``!``: OpenSSH reads those as patterns."""


class Action(StrEnum):
    """What an approval allows."""

    TASK = "task"
    PLAN = "plan"
    RERUN = "rerun"
    FIX = "fix"
    FINDING = "finding"
    DEPARTURE = "departure"
    CHECK = "check"
    VERSION = "version"
    TOKEN = "token"  # noqa: S105 - an action, no password


class Decision(StrEnum):
    """What a reviewer says."""

    APPROVE = "approve"
    REJECT = "reject"


REASONED = frozenset({Action.FINDING, Action.DEPARTURE})
"""Actions whose approval needs a reason, as every rejection does."""


class Request(BaseModel):
    """What somebody asks to be allowed; immutable. Its whole content is digested into the statement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Action
    title: str = Field(min_length=1, max_length=200, description="one line for the reviewer")
    content: JsonValue = Field(description="what is to be done, in full; at most 1 MiB of canonical JSON")
    subjects: dict[Annotated[str, Field(min_length=1, max_length=200)], Sha256] = Field(
        {}, max_length=1000, description="name -> SHA-256 of each thing it acts on: model file, pack, data"
    )
    requester: Principal
    under: str = Field(
        "", pattern=r"^(A-[0-9a-f]{10}-[1-9][0-9]{0,8})?$", description="ticket of the task it comes under"
    )
    node_millihours: int = Field(0, ge=0, le=10**12, description="cost, in thousandths of a node-hour")
    attempts: int = Field(1, ge=1, le=100, description="how often each digest of `uses` may be used")
    uses: tuple[Sha256, ...] = Field(
        (), max_length=10_000, description="digests that may be used; none means that of the content alone"
    )
    evidence: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field((), max_length=1000)
    requester_uid: int | None = Field(
        None, ge=0, description="operating-system user of the requester, where the server knows it"
    )

    @field_validator("content")
    @classmethod
    def _bounded(cls, content: JsonValue) -> JsonValue:
        try:
            size = len(canonical(content))
            json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except RecursionError as error:
            raise ValueError("the content is nested too deeply") from error
        if size > MAX_CONTENT:
            raise ValueError(f"the content is {size} bytes; at most {MAX_CONTENT} can be reviewed")
        return content

    @model_validator(mode="after")
    def _each_use_once(self) -> Self:
        if len(set(self.uses)) != len(self.uses):
            raise ValueError("a digest stands twice in uses; give `attempts` to use one more than once")
        return self

    @property
    def content_sha256(self) -> str:
        """Digest of the canonical JSON of the content."""
        return digest(self.content)

    @property
    def sha256(self) -> str:
        """Digest of the whole request: title and evidence too."""
        return digest(self.model_dump(mode="json"))

    @property
    def allowed_uses(self) -> tuple[str, ...]:
        """The digests that may be used."""
        return self.uses or (self.content_sha256,)


class Statement(BaseModel):
    """What is signed; immutable. The decision's own fields stand at the end, all others repeat the ticket."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: int = Field(1, ge=1, le=1)
    workspace: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    ticket: TicketId
    action: Action
    content_sha256: Sha256
    request_sha256: Sha256 = Field(description="digest of the whole request, with title and evidence")
    subjects: dict[str, Sha256]
    uses: tuple[Sha256, ...]
    attempts: int
    requester: str
    under: str
    node_millihours: int
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    expires: int = Field(description="seconds since 1970, UTC")
    policy_sha256: Sha256
    rule: str

    decision: Decision
    signer: Principal
    reason: str = Field(max_length=MAX_REASON)
    issued: int = Field(description="seconds since 1970, UTC")
    tier: str = Field(pattern=r"^T[0-3]$")
    log_head: Sha256 = Field(description="hash of the last entry of the audit log that the signer saw")
    log_length: int = Field(ge=0, description="number of that entry")

    def text(self) -> str:
        """The canonical JSON: ASCII, one line, no line end."""
        return canonical(self.model_dump(mode="json"))

    def bytes(self) -> bytes:
        """What is signed."""
        return self.text().encode("ascii")

    @property
    def sha256(self) -> str:
        """Digest of what is signed."""
        return digest(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, text: str) -> "Statement":
        """Read a statement back. Raises `Refused` when it is not one, or not in its one spelling."""
        try:
            statement = cls.model_validate_json(text)
        except (ValidationError, RecursionError) as error:
            raise Refused(
                f"this is no statement: {str(error).splitlines()[0]}", "draft the decision again"
            ) from error
        if statement.text() != text:
            raise Refused("the statement is not in its canonical spelling", "draft the decision again")
        return statement


def stored_request(text: str) -> Request:
    """A request as it was stored. Raises `Refused` when the row no longer holds one."""
    try:
        return Request.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise Refused("the stored request is damaged", "withdraw it and request again") from error


def as_stored(request: Request) -> str:
    """The canonical JSON of a request, whose digest is `Request.sha256`."""
    return canonical(request.model_dump(mode="json"))
