"""How well whoever asks is kept apart from whoever decides, as one sentence for people and agents."""

from typing import TYPE_CHECKING

from approvals.errors import Refused
from approvals.trust import EXAMPLE_SIGNER

if TYPE_CHECKING:  # sqlite-utils takes a fifth of a second to import
    from plumbline_mcp.workspace import Workspace

SAME_USER = (
    "an agent of the user that owns this workspace (on standard input and output always) could change its "
    "files, so against such an agent approvals are advisory; see docs/deployment.md"
)


def separation(workspace: "Workspace") -> str:
    """What approvals are worth here: of an example, without a reviewer, or between users of this machine."""
    try:
        trust = workspace.approvals.trust
        if trust.is_example:
            return f"example workspace: the throwaway key {EXAMPLE_SIGNER!r} signs, which proves nothing"
        names = trust.reviewers()
    except Refused as error:
        return f"no approval counts: {error.message}"
    if not names:
        return f"no reviewer is enrolled, so nothing is approved; {SAME_USER}"
    return f"{len(names)} reviewer{'s' if len(names) > 1 else ''} enrolled; {SAME_USER}"
