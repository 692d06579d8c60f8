"""A request as it stands in the queue, with what was decided about it."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from approvals.statement import Decision, Request


class TicketState(StrEnum):
    """Where a request is. The last four are terminal: the same request then gets a new ticket."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    USED = "used"

    @property
    def open(self) -> bool:
        """Whether it can still be decided or used."""
        return self in (TicketState.PENDING, TicketState.APPROVED)


class Decided(BaseModel):
    """One signed decision, with what was signed and the signature; immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signer: str
    decision: Decision
    reason: str
    issued: int = Field(description="when it was drafted, seconds since 1970, UTC")
    tier: str
    self_approved: bool = Field(description="whether the signer is the requester")
    sha256: str = Field(description="digest of the statement")
    statement: str = Field(description="the exact text that was signed")
    signature: str = Field(description="SSH signature, armored")


class Ticket(BaseModel):
    """A request in the queue; immutable. What a state says counts only once `Approvals.verify` agrees."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    request: Request
    rule: str = Field(description="name of the policy's rule that fits it")
    state: TicketState
    created: int = Field(description="seconds since 1970, UTC")
    expires: int = Field(description="seconds since 1970, UTC; void from then on")
    decisions: tuple[Decided, ...]
    uses_left: int
    reason: str = Field(description="of the last decision, or why it was withdrawn")
    tier: str = Field(description="T0 to T2: how well requester and reviewer are separated; see tiers")
    policy_sha256: str
    nonce: str
