"""The lines of ``allowed_signers``: OpenSSH's format, of which only the plain kind is taken.

    NAME namespaces="plumbline-approval@v1"[,valid-after="..."][,valid-before="..."] TYPE KEY

One name and one namespace a line; no patterns, no certificates.
"""

import re

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from approvals import ssh_keygen
from approvals.errors import Refused
from approvals.ssh_keygen import PublicKey
from approvals.statement import Principal

_PRINCIPAL: TypeAdapter[str] = TypeAdapter(Principal)
_LINE = re.compile(
    r'^(?P<principal>\S+) (?P<options>[a-z-]+="[^"]*"(?:,[a-z-]+="[^"]*")*) '
    r"(?P<type>(?:ssh|ecdsa|sk)-[A-Za-z0-9@.-]+) (?P<blob>[A-Za-z0-9+/=]+)(?: (?P<comment>.*))?$"
)
_OPTION = re.compile(r'([a-z-]+)="([^"]*)"')
_DAY = re.compile(r"^[0-9]{8}([0-9]{4,6})?Z$")
_ELSEWHERE = "elsewhere"


class Signer(BaseModel):
    """One enrolled key; immutable."""

    model_config = ConfigDict(frozen=True)

    principal: str
    key: PublicKey
    valid_after: str = ""
    valid_before: str = ""
    revoked: bool = False
    elsewhere: bool = False
    """Whether the private key was not at hand at enrolment, so that nobody tested its passphrase."""


def parsed_line(line: str, where: str, namespace: str) -> Signer:
    """The signer of a line, not yet looked up among the revoked. Raises `Refused` for another kind."""
    found = _LINE.match(line)
    options = dict(_OPTION.findall(found["options"])) if found else {}
    known = {"namespaces", "valid-after", "valid-before"}
    if not found or not set(options) <= known or options.get("namespaces") != namespace:
        raise Refused(
            f'{where} is not of the form: NAME namespaces="{namespace}" TYPE KEY',
            "correct the line, or remove it and enrol the key: plumbline key enrol NAME",
        )
    refuse_principal(found["principal"])
    return Signer(
        principal=found["principal"],
        key=ssh_keygen.parsed_key(found["type"], found["blob"], where),
        valid_after=options.get("valid-after", ""),
        valid_before=options.get("valid-before", ""),
        elsewhere=found["comment"] == _ELSEWHERE,
    )


def written_line(signer: Signer, namespace: str) -> str:
    """The line of a signer."""
    before = f',valid-before="{signer.valid_before}"' if signer.valid_before else ""
    comment = f" {_ELSEWHERE}" if signer.elsewhere else ""
    return f'{signer.principal} namespaces="{namespace}"{before} {signer.key.text}{comment}'


def refuse_principal(principal: str) -> None:
    """Raise `Refused` for a name that OpenSSH could read as a pattern or a list."""
    try:
        _PRINCIPAL.validate_python(principal)
    except ValidationError as error:
        raise Refused(
            f"{principal[:80]!r} cannot name a reviewer", "use letters, digits and . _ @ + - (64 at most)"
        ) from error


def day(text: str) -> str:
    """``YYYYMMDD`` as OpenSSH takes a day in UTC; "" stays. Raises `Refused`."""
    if text and not _DAY.match(f"{text}Z"):
        raise Refused(f"{text!r} is no day", "give it as YYYYMMDD, for example 20271231")
    return f"{text}Z" if text else ""
