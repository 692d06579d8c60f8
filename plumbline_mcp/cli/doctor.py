"""``plumbline doctor``: whether this installation and this workspace can be relied on."""

import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.workspace import Workspace

_OLDEST_SQLITE = (3, 37)
"""STRICT tables came with it."""
_FREE_BYTES = 2 * 2**30
"""Below so much free space, runs and environments (torch alone is larger) will not fit."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``ok``, ``warn`` (works, but note it), ``bad``, or ``unavailable``: it
    does not work here, and nothing needs it unless a target names it."""

    name: str
    state: str
    found: str
    next_step: str = ""


NAME = "doctor"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME, help=paragraphs(doctor.__doc__), short_help="Check this installation and workspace."
    )(doctor)


def doctor(json_output: Json = False, home: Home = None) -> int:
    """Check the installation (own environment, pins, launcher, container runtimes), keys and workspace.

    Exit codes: 0 all good (warnings included), 2 something is bad, 3 usage error or crash.

    Example: plumbline doctor
    """
    from plumbline_mcp.cli.screen import print_json

    findings = [*_installation(), *_runtimes(), *_reviewers(), *_workspace(home)]
    if json_output:
        print_json({"ok": _ok(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    return ExitCode.PASS if _ok(findings) else ExitCode.COULD_NOT_JUDGE


def _ok(findings: list[Finding]) -> bool:
    return all(finding.state != "bad" for finding in findings)


def _print(findings: list[Finding]) -> None:
    from rich.text import Text

    from plumbline_mcp.cli.screen import console, labelled, table, untrusted

    signs = {"ok": Text("✓ ok", "green"), "warn": Text("! note", "yellow"), "bad": Text("✗ bad", "bold red")}
    signs["unavailable"] = Text("– unavailable", "dim")
    rows = []
    for finding in findings:
        said = untrusted(finding.found, limit=300)
        if finding.next_step:
            said = Text.assemble(said, labelled("\nnext: ", finding.next_step))
        rows.append([untrusted(finding.name), signs[finding.state], said])
    console().print(table("looked at", "", "found", rows=rows))


# --- the installation ------------------------------------------------------------------------------------


def _installation() -> Iterable[Finding]:
    from plumbline_mcp.version import system_version

    yield Finding("system version", "ok", str(system_version()))
    yield _own_environment()
    yield _launcher()
    yield from _pins()
    yield _sqlite()


def _own_environment() -> Finding:
    """Reference libraries are pinned, so an environment shared with a framework would judge otherwise."""
    hint = "install it with `uv tool install`, pipx, or into a virtual environment of its own"
    if sys.prefix == sys.base_prefix:
        return Finding("environment", "warn", f"{sys.prefix} is not an environment of its own", hint)
    sharing = ", ".join(_sharing())
    if sharing:
        found = f"{sys.prefix} is shared with {sharing}, whose needs may change the reference libraries"
        return Finding("environment", "warn", found, hint)
    return Finding("environment", "ok", sys.prefix)


def _sharing() -> list[str]:
    """Distributions here that build on a reference library and that are none of our requirements."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    from plumbline_mcp.version import DISTRIBUTION

    def needs(text: str) -> str:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return ""
        extra_only = requirement.marker is not None and "extra" in str(requirement.marker)
        return "" if extra_only else canonicalize_name(requirement.name)

    own = {DISTRIBUTION, *map(needs, metadata.requires(DISTRIBUTION) or ())}
    return sorted(
        found.name
        for found in metadata.distributions()
        if canonicalize_name(found.name) not in own
        and {"torch", "transformers"} & set(map(needs, found.requires or ()))
    )


def _launcher() -> Finding:
    path = Path(sys.executable).parent / "plumbline"
    text = path.read_bytes()[:400] if path.is_file() else b""
    if text and b" -I -m plumbline_mcp" in text:
        return Finding("launcher", "ok", str(path))
    found = "is not the isolated launcher" if text else "is missing"
    return Finding("launcher", "bad", f"{path} {found}", "install the package again, without editing scripts")


def _pins() -> Iterable[Finding]:
    """Each requirement of this distribution against what is installed."""
    from importlib import metadata

    from packaging.requirements import Requirement

    from plumbline_mcp.version import DISTRIBUTION

    wrong = []
    for text in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed == "missing" or not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} {installed} (wanted {requirement.specifier})")
    if wrong:
        yield Finding("packages", "bad", "; ".join(wrong), "install the package again in its own environment")
    else:
        yield Finding("packages", "ok", "every requirement is met at its pinned version")


def _sqlite() -> Finding:
    import sqlite3

    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        wanted = ".".join(map(str, _OLDEST_SQLITE))
        return Finding("SQLite", "bad", sqlite3.sqlite_version, f"use a Python with SQLite {wanted} or newer")
    return Finding("SQLite", "ok", sqlite3.sqlite_version)


# --- what may run jobs -----------------------------------------------------------------------------------


def _runtimes() -> Iterable[Finding]:
    """Which container runtimes answer: a target may name an image only where one does."""
    from plumbline_mcp.engines.images import runtimes

    for runtime in runtimes():
        if runtime.answers:
            yield Finding(runtime.name, "ok", f"answers {runtime.version}".strip() + "; no image was tried")
        else:
            yield Finding(runtime.name, "unavailable", f"starts no image here: {runtime.why}")


# --- who may sign ----------------------------------------------------------------------------------------


def _reviewers() -> Iterable[Finding]:
    from approvals import ssh_keygen
    from approvals.errors import Refused
    from approvals.trust import TrustRoots

    trust = TrustRoots()
    try:
        yield Finding("ssh-keygen", "ok", ssh_keygen.program())
    except Refused as refused:
        yield Finding("ssh-keygen", "unavailable", refused.message, refused.next_step)
        return
    if not trust.folder.exists():
        enrol = "plumbline key enrol NAME, then plumbline policy use solo (or team)"
        yield Finding("reviewers", "unavailable", f"nobody is enrolled in {trust.folder}", enrol)
        return
    try:
        names = sorted({signer.principal for signer in trust.enrolled() if not signer.revoked})
        policy = trust.policy()
    except Refused as refused:
        yield Finding("reviewers", "bad", refused.message, refused.next_step)
        return
    yield Finding("reviewers", "ok", f"{', '.join(names) or 'nobody'}, policy {policy.name}, {trust.folder}")


# --- the workspace ---------------------------------------------------------------------------------------


def _workspace(home: Path | None) -> Iterable[Finding]:
    from plumbline_mcp.errors import WorkspaceError
    from plumbline_mcp.workspace import Workspace, default_home

    folder = (home or default_home()).expanduser().absolute()
    yield _disk(folder)
    if not folder.is_dir():
        yield Finding("workspace", "ok", f"{folder} does not exist yet; the first check makes it")
        return
    try:
        workspace = Workspace.open(folder)
    except WorkspaceError as error:
        yield Finding("workspace", "bad", error.message, error.next_step)
        return
    yield Finding("workspace", "ok", f"{folder}, on a local file system")
    yield from _database(workspace)


def _disk(folder: Path) -> Finding:
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    said = f"{free / 2**30:.1f} GiB free at {existing}"
    if free < _FREE_BYTES:
        return Finding("disk", "warn", said, "free space, or set PLUMBLINE_HOME to a larger disk")
    return Finding("disk", "ok", said)


def _database(workspace: "Workspace") -> Iterable[Finding]:
    import sqlite3

    reader = sqlite3.connect(f"{(workspace.home / 'plumbline.db').as_uri()}?mode=ro", uri=True)
    try:
        mode = str(reader.execute("pragma journal_mode").fetchone()[0])
        intact = str(reader.execute("pragma integrity_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        mode, intact = "unknown", str(error)
    finally:
        reader.close()
    restore = "restore a copy of the database, or set PLUMBLINE_HOME to a new folder"
    yield Finding("journal", *(("ok", "WAL") if mode == "wal" else ("warn", f"{mode}, not WAL")))
    yield Finding("database", *(("ok", "intact") if intact == "ok" else ("bad", intact, restore)))
    if intact == "ok":
        yield from _audit(workspace, restore)


def _audit(workspace: "Workspace", restore: str) -> Iterable[Finding]:
    broken = workspace.verify()
    for problem in broken[:5]:
        yield Finding("audit log", "bad", problem, restore)
    if not broken:
        yield Finding("audit log", "ok", f"whole; its head is {workspace.audit.head()}")
