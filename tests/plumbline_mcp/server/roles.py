"""A workspace with a reviewer, tokens minted with real signatures, and the installed program on HTTP."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from approvals.queue import Approvals
from approvals.ticket import Ticket
from plumbline_mcp.server.tokens import Minted, Tokens
from plumbline_mcp.workspace import Workspace
from tests.approvals.reviewers import Reviewer, make_reviewer, signed, trusting

PROGRAM = Path(sys.executable).parent / "plumbline"


@dataclass
class Site:
    """A workspace's home and the trust roots beside it."""

    home: Path
    trust: Path
    ada: Reviewer
    grace: Reviewer

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PLUMBLINE_HOME": str(self.home), "PLUMBLINE_TRUST": str(self.trust)}

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(self.home)

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.workspace)


def make_site(folder: Path, policy: str = "solo") -> Site:
    """Call it with ``PLUMBLINE_TRUST`` set to ``folder / "trust"``."""
    folder.joinpath("keys").mkdir()
    ada, grace = (make_reviewer(name, folder / "keys") for name in ("ada", "grace"))
    trusting(folder / "trust", policy, ada, grace)
    return Site(folder / "home", folder / "trust", ada, grace)


def approve(approvals: Approvals, ticket: str, reviewer: Reviewer, decision: str = "approve") -> Ticket:
    statement = approvals.draft(ticket, decision, reviewer.name, "as discussed")
    return approvals.record(ticket, statement, signed(statement, reviewer, approvals.trust.namespace))


def mint(site: Site, role: str, name: str, days: int = 9, requester: str = "operator") -> Minted:
    """A token that was signed and counts."""
    minted = site.tokens.ask(role, name, days, requester)
    approve(site.workspace.approvals, minted.listed.ticket, site.ada)
    return Minted(token=minted.token, listed=site.tokens.activate(minted.listed.ticket))


@contextmanager
def serving(site: Site, folder: Path) -> Iterator[dict[str, str]]:
    """The program on HTTP; what it announces."""
    process = subprocess.Popen(
        [str(PROGRAM), "serve", "--http", "--json"],
        cwd=folder,
        env=site.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)
    finally:
        process.terminate()
        process.communicate(timeout=20)
