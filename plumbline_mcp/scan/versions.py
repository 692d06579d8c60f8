"""Frozen versions: frozen under a reviewer's signature, listed, and compared by files, pins and rules."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from approvals.decisions import signed_statement
from approvals.errors import Refused
from approvals.statement import Action, Decision, Request
from approvals.ticket import Ticket, TicketState
from checks import rules
from checks.verdict import Frozen
from plumbline_mcp import version
from plumbline_mcp.errors import UsageError
from plumbline_mcp.workspace import Workspace

INSTALLED = "installed"
"""Names the program that runs, wherever a version is named."""
MAX_BYTES = 2**22
_SHORTEST = 6


class VersionContent(Frozen):
    """What a version is, as it is signed: integers and strings only."""

    release: str
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    pins: dict[str, str] = Field(description="reference library to version")
    files: dict[str, str] = Field(description="shipped file to SHA-256")
    rules: dict[str, str] = Field(description="constant of checks/rules.py to its value, as Python writes it")

    @property
    def name(self) -> str:
        """How verdicts name it once it is frozen."""
        return f"{self.release}-{self.digest[:12]}"

    def whole(self) -> bool:
        """Whether the digest is that of release, pins and files."""
        return version.digest_of(self.release, self.pins, self.files) == self.digest


class ListedVersion(Frozen):
    """A version that this workspace knows."""

    name: str
    digest: str | None = Field(None, description="of the whole tree; None where only verdicts name it")
    installed: bool = False
    frozen: bool = False
    signers: tuple[str, ...] = ()
    ticket: str | None = None
    state: str = ""
    verdicts: int = 0


class Difference(Frozen):
    """What is other in one version than in another."""

    before: str
    after: str
    files: dict[str, str] = Field(description="file to added, removed or changed")
    pins: dict[str, tuple[str | None, str | None]]
    rules: dict[str, tuple[str | None, str | None]]

    @property
    def same(self) -> bool:
        """Whether both judge alike."""
        return not (self.files or self.pins or self.rules)


def installed() -> VersionContent:
    """The program that runs."""
    now = version.system_version()
    return VersionContent(
        release=now.release, digest=now.digest, pins=now.pins, files=now.files, rules=_rules()
    )


def _rules() -> dict[str, str]:
    return {name: _shown(value) for name, value in sorted(vars(rules).items()) if name.isupper()}


def _shown(value: object) -> str:
    """One spelling for each value; a set has no order of its own."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return repr(value)


def ask(workspace: Workspace, requester: str) -> Ticket:
    """Ask for the signature that freezes this tree; the same tree again is the same open ticket."""
    content = installed()
    with workspace.write_tx():
        return workspace.approvals.request(
            Request(
                action=Action.VERSION,
                title=f"freeze version {content.name}: {len(content.files)} files",
                content=content.model_dump(mode="json"),
                subjects={"system version": content.digest},
                requester=requester,
            )
        )


def freeze(workspace: Workspace, ticket_id: str) -> Path:
    """Use up the signed approval and write this tree's digest list, with who signed it.

    The tree is measured again: one that changed since it was signed is another version. Raises `Refused`,
    and `UsageError` where the program's folder cannot be written.
    """
    content = installed()
    ticket = workspace.approvals.ticket(ticket_id)
    if ticket.request.action is not Action.VERSION:
        raise Refused(f"{ticket_id} freezes no version", "ask for it: plumbline version freeze")
    with workspace.write_tx():
        measured = {"system version": content.digest}
        use = ticket.request.content_sha256
        used = workspace.approvals.consume(ticket_id, use, subjects=measured)
        signed = [{"statement": one.statement, "signature": one.signature} for one in used.decisions]
        try:
            return version.freeze(signed, content.rules)
        except OSError as error:
            raise UsageError(
                f"{version.FROZEN} cannot be written: {error.strerror}",
                "freeze as the user who owns the program",
            ) from error


def frozen_by(workspace: Workspace | None, approvals: list[dict[str, str]], digest: str) -> tuple[str, ...]:
    """The reviewers whose signatures over this digest hold by the trust roots here; others are not named."""
    if workspace is None:
        return ()
    names = []
    for one in approvals:
        try:
            text, signature = str(one.get("statement", "")), str(one.get("signature", ""))
            statement = signed_statement(text, signature, workspace.approvals.trust)
        except Refused:
            continue
        about = (statement.action, statement.decision, statement.subjects.get("system version"))
        if about == (Action.VERSION, Decision.APPROVE, digest):
            names.append(statement.signer)
    return tuple(dict.fromkeys(names))


def known(workspace: Workspace) -> list[ListedVersion]:
    """The installed version, those asked for or frozen here, and those that verdicts were given by."""
    sql = "select json_extract(verdict, '$.system_version') as name, count(*) as n from verdicts group by 1"
    counts = {str(row["name"]): int(row["n"]) for row in workspace.query(sql, {}) if row["name"]}
    now = version.system_version()
    found = {str(now): ListedVersion(name=str(now), digest=now.digest, installed=True, frozen=now.frozen)}
    for ticket, content in _asked(workspace):
        before = found.get(content.name, ListedVersion(name=content.name, digest=content.digest))
        if before.ticket is None:
            signers = tuple(one.signer for one in ticket.decisions if one.decision is Decision.APPROVE)
            here = {"frozen": before.frozen or ticket.state is TicketState.USED, "signers": signers}
            about = {"ticket": ticket.id, "state": ticket.state.value}
            found[content.name] = before.model_copy(update=here | about)
    for name in counts:
        found.setdefault(name, ListedVersion(name=name))
    return [one.model_copy(update={"verdicts": counts.get(one.name, 0)}) for one in found.values()]


def content_of(workspace: Workspace | None, name: str) -> VersionContent:
    """A version by its name, the beginning of its digest, a digest list's file, or ``installed``.

    Raises `UsageError` for one that nothing here describes.
    """
    if name == INSTALLED:
        return installed()
    if Path(name).is_file():
        return _read(Path(name))
    plain = name.removesuffix("+dev")
    candidates = [installed(), *(content for _, content in _asked(workspace))]
    found = {one.digest: one for one in candidates if _is_named(one, plain)}
    if len(found) == 1:
        return found.popitem()[1]
    what = "names several versions" if found else "is no version that is described here"
    raise UsageError(
        f"{name[:80]!r} {what}",
        "see plumbline version list; of another install name its plumbline_mcp/frozen.json",
    )


def difference(before: VersionContent, after: VersionContent) -> Difference:
    """Files, pins and rules that are not the same."""
    return Difference(
        before=before.name,
        after=after.name,
        files={name: _word(*pair) for name, pair in _changed(before.files, after.files).items()},
        pins=_changed(before.pins, after.pins),
        rules=_changed(before.rules, after.rules),
    )


def _changed(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    names = sorted(before.keys() | after.keys())
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _word(before: str | None, after: str | None) -> str:
    return "added" if before is None else "removed" if after is None else "changed"


def _is_named(content: VersionContent, name: str) -> bool:
    return name == content.name or (len(name) >= _SHORTEST and content.digest.startswith(name))


def _asked(workspace: Workspace | None) -> Iterator[tuple[Ticket, VersionContent]]:
    """Requests to freeze a version, newest first, as far as their content is whole."""
    if workspace is None:
        return
    sql = "select id from requests where json_extract(request, '$.action') = 'version' order by seq desc"
    for row in workspace.query(sql, {}):
        ticket = workspace.approvals.ticket(str(row["id"]))
        content = _content(ticket.request.content)
        if content is not None:
            yield ticket, content


def _content(value: Any) -> VersionContent | None:
    try:
        content = VersionContent.model_validate(value)
    except ValidationError:
        return None
    return content if content.whole() else None


def _read(path: Path) -> VersionContent:
    """A digest list as `version freeze` writes it. Raises `UsageError`."""
    if path.stat().st_size <= MAX_BYTES:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            fields = {name: told[name] for name in ("release", "digest", "pins", "files")}
        except (ValueError, TypeError, KeyError):
            fields = {}
        content = _content(fields | {"rules": told.get("rules", {})}) if fields else None
        if content is not None:
            return content
    raise UsageError(f"{path} is no whole digest list", "name the frozen.json of an install")
