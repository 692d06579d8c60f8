"""Bearer tokens: minted under a reviewer's signature, kept as SHA-256 only, listed and revoked.

A token has no table of its own. What is signed is the request: name, role, the token's digest and when it
ends. It counts once its approval is consumed, and until the audit log holds its revocation. So whoever
changes a row changes something that a reviewer signed, and that is noticed when the token is used.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from approvals.audit import AuditLog
from approvals.errors import Refused
from approvals.statement import Action, Decision, Principal, Request, Sha256
from approvals.ticket import Ticket, TicketState
from approvals.used import hold_used
from approvals.witness import refuse_broken_log
from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.roles import Role

if TYPE_CHECKING:
    from approvals.queue import Approvals
    from plumbline_mcp.workspace import Workspace

REVOKED = "token_revoked"
PREFIX = "plumbline_"
"""Begins each token, so that scanners for leaked secrets find it."""
MAX_DAYS = 366
_DAY_S = 86_400
_LONGEST = 200
_RESERVED = frozenset({"recompute", "example", "local", *Role})
_TOKENS = "select * from requests where json_extract(request, '$.action') = 'token'"


class TokenState(StrEnum):
    """How a token stands."""

    WAITING = "waiting"
    """Nobody signed it yet."""
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"
    VOID = "void"
    """Its request was rejected, withdrawn or not signed in time."""


class Grant(BaseModel):
    """What a reviewer signs about a token; immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Principal = Field(description="who uses it, as verdicts, requests and findings will name them")
    role: Role
    token_sha256: Sha256
    ends: Annotated[int, Field(ge=0)] = Field(description="seconds since 1970, UTC")


class Token(BaseModel):
    """A token as it is listed; immutable. The token itself is nowhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    role: Role
    state: TokenState
    ticket: str
    sha256: str
    created: int = Field(description="seconds since 1970, UTC")
    ends: int = Field(description="seconds since 1970, UTC")
    signers: tuple[str, ...] = ()
    requester: str = ""


class Minted(BaseModel):
    """A new token, once: it is shown to whoever asked and kept nowhere."""

    model_config = ConfigDict(frozen=True)

    token: str
    listed: Token


class Tokens:
    """The tokens of one workspace; safe to use from several threads."""

    def __init__(self, workspace: "Workspace", clock: Callable[[], float] = time.time) -> None:
        self._workspace = workspace
        self._clock = clock
        self._held: dict[tuple[Any, ...], Token] = {}
        self._log_held = False

    @property
    def approvals(self) -> "Approvals":
        """The workspace's approvals."""
        return self._workspace.approvals

    # --- minting ----------------------------------------------------------------------------------------

    def ask(self, role: Role | str, name: str, days: int, requester: str) -> Minted:
        """Make a token and ask for the signature that makes it count. Raises `UsageError`, `Refused`."""
        _refuse_name(name)
        if not 1 <= days <= MAX_DAYS:
            raise UsageError(f"a token cannot count for {days} days", f"give 1 to {MAX_DAYS}")
        token = PREFIX + secrets.token_urlsafe(32)
        now = int(self._clock())
        grant = Grant(name=name, role=Role(role), token_sha256=_sha256(token), ends=now + days * _DAY_S)
        with self._workspace.write_tx():
            self._refuse_taken(name)
            ticket = self._workspace.approvals.request(
                Request(
                    action=Action.TOKEN,
                    title=f"token {name!r}: role {grant.role}, {days} days",
                    content=grant.model_dump(mode="json"),
                    subjects={"token": grant.token_sha256},
                    requester=requester,
                )
            )
        return Minted(token=token, listed=self._listed(ticket))

    def activate(self, ticket_id: str) -> Token:
        """Consume the signed approval of a token, so that it counts. Raises `Refused` where there is none."""
        with self._workspace.write_tx():
            approvals = self._workspace.approvals
            ticket = approvals.ticket(ticket_id)
            if ticket.request.action is not Action.TOKEN:
                raise Refused(f"{ticket_id} is no request for a token", "see them: plumbline token list")
            state = self._listed(ticket).state
            if state is not TokenState.WAITING:
                raise Refused(f"the token of {ticket_id} is {state}", "mint another one")
            approvals.consume(ticket_id, ticket.request.content_sha256)
        return self._listed(approvals.ticket(ticket_id))

    def revoke(self, name: str) -> tuple[Token, ...]:
        """Stop every token of a name (or the one of a ticket) from counting. Raises `UsageError` for none."""
        with self._workspace.write_tx():
            states = (TokenState.ACTIVE, TokenState.WAITING)
            found = [one for one in self.listed() if name in (one.name, one.ticket) and one.state in states]
            if not found:
                raise UsageError(f"no token of {name[:80]!r} counts", "see them: plumbline token list")
            for one in found:
                self._workspace.audit.append(REVOKED, one.ticket, {"name": one.name, "sha256": one.sha256})
        return tuple(one.model_copy(update={"state": TokenState.REVOKED}) for one in found)

    def listed(self) -> list[Token]:
        """Every token, newest first."""
        approvals = self._workspace.approvals
        found = self._workspace.query(f"{_TOKENS} order by seq desc", {})
        return [self._listed(approvals.ticket(row["id"])) for row in found]

    # --- using ------------------------------------------------------------------------------------------

    def find(self, token: str) -> Token | None:
        """The token that counts now, held against what was signed; None for any other text.

        One that was signed and never used is activated. Raises `Refused` for one whose rows, signatures or
        log do not hold.
        """
        if not token.isascii() or len(token) > _LONGEST:
            return None
        sha256 = _sha256(token)
        rows = self._workspace.query(
            f"{_TOKENS} and json_extract(request, '$.content.token_sha256') = :sha256",
            {"sha256": sha256},
        )
        for row in rows:
            listed = self._counting(str(row["id"]))
            if listed is not None:
                return listed
        return None

    def _counting(self, ticket_id: str) -> Token | None:
        ticket = self._workspace.approvals.ticket(ticket_id)
        listed = self._listed(ticket)
        if ticket.state is TicketState.APPROVED and listed.state is TokenState.WAITING:
            listed = self.activate(ticket_id)
        if listed.state is not TokenState.ACTIVE:
            return None
        key = (listed, *(_stamp(path) for path in self._trust_files()))
        if key not in self._held:
            self._hold(ticket_id)
            self._held = {**self._held, key: listed} if len(self._held) < 1000 else {key: listed}
        return listed

    def _hold(self, ticket_id: str) -> None:
        """Request, decisions and use are those of the log, and every signature counts. Raises `Refused`."""
        approvals = self._workspace.approvals
        if not self._log_held:
            refuse_broken_log(approvals.connection)
            self._log_held = True
        hold_used(approvals, ticket_id, "mint the token again")

    # --- steps ------------------------------------------------------------------------------------------

    def _listed(self, ticket: Ticket) -> Token:
        try:
            grant = Grant.model_validate(ticket.request.content)
        except ValidationError as error:
            raise Refused(f"{ticket.id} asks for no token that can be read", "mint it again") from error
        return Token(
            name=grant.name,
            role=grant.role,
            state=self._state(ticket, grant),
            ticket=ticket.id,
            sha256=grant.token_sha256,
            created=ticket.created,
            ends=grant.ends,
            signers=tuple(one.signer for one in ticket.decisions if one.decision is Decision.APPROVE),
            requester=ticket.request.requester,
        )

    def _state(self, ticket: Ticket, grant: Grant) -> TokenState:
        audit = AuditLog(self._workspace.approvals.connection)
        if any(one.event == REVOKED for one in audit.matching("subject", ticket.id)):
            return TokenState.REVOKED
        if grant.ends <= self._clock():
            return TokenState.EXPIRED
        if ticket.state.open:
            return TokenState.WAITING
        return TokenState.ACTIVE if ticket.state is TicketState.USED else TokenState.VOID

    def _refuse_taken(self, name: str) -> None:
        for one in self.listed():
            if one.name == name and one.state in (TokenState.ACTIVE, TokenState.WAITING):
                raise UsageError(
                    f"there is a token of {name!r} already ({one.role}, {one.state})",
                    f"take another name, or revoke it first: plumbline token revoke {name}",
                )

    def _trust_files(self) -> Iterator[Path]:
        trust = self._workspace.approvals.trust
        yield from (trust.allowed_signers, trust.revoked, trust.policy_file)


def start_token_counts(home: Path | None) -> bool:
    """Whether the one token of a start is enough here: in an example, and while no reviewer is enrolled.

    From the moment on that somebody can sign, tokens are minted. Raises `Refused` for trust roots that cannot
    be believed.
    """
    from approvals.origin import EXAMPLE
    from approvals.trust import TrustRoots

    workspace = existing_workspace(home)
    if workspace is not None and workspace.kind == EXAMPLE:
        return True
    trust = TrustRoots()
    return not trust.folder.exists() or all(signer.revoked for signer in trust.enrolled())


def existing_workspace(home: Path | None) -> "Workspace | None":
    """The workspace, when there is one: to look for a token is no reason to make it."""
    from plumbline_mcp.workspace import Workspace
    from plumbline_mcp.workspace.location import DATABASE, default_home

    place = (home or default_home()).expanduser().absolute()
    return Workspace.open(place, create=False) if (place / DATABASE).is_file() else None


def _refuse_name(name: str) -> None:
    if name in _RESERVED:
        raise UsageError(f"a token cannot be called {name!r}", "take a name that says who uses it")
    try:
        Grant(name=name, role=Role.AGENT, token_sha256="0" * 64, ends=0)
    except ValidationError as error:
        raise UsageError(
            f"{name[:80]!r} is no name: letters, digits and . _ @ + -, at most 64", "take another name"
        ) from error


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def until(seconds: int) -> str:
    """A moment as a UTC day."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
