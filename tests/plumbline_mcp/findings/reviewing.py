"""Reviewers for tests: keys without a passphrase, listed by hand, so that no terminal is needed to sign."""

import shutil
import subprocess
from pathlib import Path

from approvals.signatures import sign
from approvals.ticket import Ticket
from approvals.trust import EXAMPLE_SIGNER, NAMESPACE, TrustRoots
from plumbline_mcp.findings import confirming
from plumbline_mcp.findings.questions import Submission
from plumbline_mcp.findings.records import StoredFinding
from plumbline_mcp.findings.verification import submit, take
from plumbline_mcp.workspace import Workspace

REVIEWER = "ada@lab"


def make_roots(folder: Path, *reviewers: str) -> Path:
    """A trust folder with a key for each reviewer and the policy `solo`."""
    (folder / "keys").mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    lines = []
    for name in reviewers or (REVIEWER,):
        key = folder / "keys" / name
        program = shutil.which("ssh-keygen") or "ssh-keygen"
        subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)], check=True)
        kind, blob, *_ = key.with_name(f"{name}.pub").read_text().split()
        lines.append(f'{name} namespaces="{NAMESPACE}" {kind} {blob}\n')
    (folder / "allowed_signers").write_text("".join(lines))
    (folder / "revoked").write_text("")
    TrustRoots(folder).use_policy("solo")
    return folder


def decided(workspace: Workspace, ticket: Ticket, decision: str, reason: str, signer: str = "") -> Ticket:
    """Sign a decision about a ticket."""
    approvals = workspace.approvals
    signer = signer or (EXAMPLE_SIGNER if approvals.trust.is_example else REVIEWER)
    statement = approvals.draft(ticket.id, decision, signer, reason)
    key = approvals.trust.key_of(signer)
    return approvals.record(
        ticket.id, statement, sign(statement.bytes(), key, approvals.trust.namespace, tty=False)
    )


def right_answer(stored: StoredFinding) -> Submission:
    """What somebody finds who finds the same."""
    claim = stored.finding.claim
    return Submission(outcome=claim.outcome, place=claim.place, values={**claim.measured, **claim.values})


def rebuilt(workspace: Workspace, stored: StoredFinding, principal: str = "second-agent") -> StoredFinding:
    """The finding after another agent found the same."""
    taken = take(workspace, stored.finding.id, principal)
    submit(workspace, taken.id, principal, right_answer(stored))
    return confirming.Findings(workspace).get(stored.finding.id)


def confirmed(workspace: Workspace, stored: StoredFinding, departure: str = "") -> StoredFinding:
    """The finding after a reviewer signed it."""
    again = rebuilt(workspace, stored)
    ticket = confirming.ask(workspace, again.finding.id, "agent-of-the-target", departure)
    decided(workspace, ticket, "approve", "seen in the raw file")
    return confirming.decide(workspace, again.finding.id, "agent-of-the-target", departure)
