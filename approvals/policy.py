"""Which action needs how many signatures of whom: a TOML file whose digest stands in every statement."""

import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from approvals.errors import Refused
from approvals.statement import Action, Principal, Request

FOLDER = Path(__file__).parent / "policies"
"""The policies that ship."""
MAX_BYTES = 2**18

_SHORT_NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"


class Rule(BaseModel):
    """What one kind of request needs; immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=_SHORT_NAME)
    actions: tuple[Action, ...] = Field(min_length=1)
    max_node_hours: int | None = Field(
        None, ge=0, description="only requests that cost no more fit this rule"
    )
    signers: int = Field(ge=1, le=20, description="how many different reviewers have to approve")
    reviewers: Literal["enrolled"] | Annotated[tuple[Principal, ...], Field(min_length=1)]
    requester_may_sign: bool
    expires_s: int = Field(ge=1, le=366 * 86_400, description="seconds from the request until it is void")

    def fits(self, request: Request) -> bool:
        """Whether this rule is about the request."""
        cheap = self.max_node_hours is None or request.node_millihours <= 1000 * self.max_node_hours
        return request.action in self.actions and cheap

    def refuse_signer(self, signer: str, requester: Iterable[str]) -> None:
        """Raise `Refused` when this signer does not count for a request of this requester.

        ``requester``: every name that the requester is known by.
        """
        if self.reviewers != "enrolled" and signer not in self.reviewers:
            raise Refused(
                f"{signer} is no reviewer of rule {self.name!r}",
                f"have it signed by one of {', '.join(self.reviewers)}",
            )
        if signer in requester and not self.requester_may_sign:
            raise Refused(
                f"{signer} asked for this and may not sign it (rule {self.name!r})",
                "have another reviewer sign it",
            )


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1]
    name: str = Field(pattern=_SHORT_NAME)
    rule: tuple[Rule, ...] = Field(min_length=1, max_length=100)


class Policy(BaseModel):
    """The rules, in order; immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    rules: tuple[Rule, ...]
    sha256: str = Field(description="SHA-256 of the file's bytes, as `sha256sum` gives it")

    @classmethod
    def load(cls, path: Path) -> "Policy":
        """Read a policy file. Raises `Refused` when it is missing or not one."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise Refused(f"the policy {path} is larger than {MAX_BYTES} bytes", "shorten it")
            parsed = _File.model_validate(tomllib.loads(data.decode()))
        except FileNotFoundError as error:
            raise Refused(
                f"there is no policy at {path}", "choose one: plumbline policy use solo, or team"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise Refused(
                f"the policy {path} does not hold: {place}: {first['msg']}", "correct it"
            ) from error
        except ValueError as error:
            raise Refused(f"the policy {path} is not TOML: {error}", "correct it") from error
        names = [rule.name for rule in parsed.rule]
        if len(set(names)) != len(names):
            raise Refused(f"two rules of the policy {path} have one name", "give each rule its own name")
        return cls(name=parsed.name, rules=parsed.rule, sha256=hashlib.sha256(data).hexdigest())

    def rule_for(self, request: Request) -> Rule:
        """The first rule that fits. Raises `Refused` when none does."""
        for rule in self.rules:
            if rule.fits(request):
                return rule
        hours = f"{request.node_millihours / 1000:g} node-hours"
        raise Refused(
            f"no rule of the policy {self.name!r} allows {request.action.value} at {hours}",
            "ask for less, or have whoever owns the policy add a rule",
        )


def shipped() -> dict[str, Path]:
    """The policies that ship, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
