"""The workspace: one private folder with the database of verdicts and runs, audit log and run folders."""

from plumbline_mcp.workspace.location import HOME_VARIABLE, default_home
from plumbline_mcp.workspace.records import RunOutcome, RunState, StoredRun, StoredVerdict
from plumbline_mcp.workspace.store import Workspace

__all__ = [
    "HOME_VARIABLE",
    "RunOutcome",
    "RunState",
    "StoredRun",
    "StoredVerdict",
    "Workspace",
    "default_home",
]
