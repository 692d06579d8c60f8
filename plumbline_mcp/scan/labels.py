"""How verdicts and titles name what something ran under."""

from approvals.errors import Refused
from approvals.statement import Action
from plumbline_mcp.workspace import Workspace

NONE = "none"


def fix_label(finding: str) -> str:
    """A fix, by the finding that it is for."""
    return f"fix for {finding}"


def approval_label(workspace: Workspace, approval: str) -> str:
    """An approval as a verdict names it: its ticket, and of a fix the finding that it is for."""
    if approval == NONE:
        return approval
    try:
        request = workspace.approvals.ticket(approval).request
    except Refused:
        return approval  # its row is gone or damaged; `Workspace.verify` says so
    if request.action is not Action.FIX or not isinstance(request.content, dict):
        return approval
    return f"{approval} ({fix_label(str(request.content.get('finding')))})"
