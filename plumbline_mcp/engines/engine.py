"""What an engine does: run one launch to its end and hand back the sealed run folder."""

from typing import Protocol

from checks.check import Progress, silent
from checks.records.runs import RunFolder
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.workspace import Workspace


class Engine(Protocol):
    """One way to run a job. The run folder is the same under every engine."""

    async def __call__(self, workspace: Workspace, launch: Launch, progress: Progress = silent) -> RunFolder:
        """Run the launch.

        A job that crashes or exceeds its time still ends in a sealed folder: its exit file says so.
        Raises `UsageError` and `BadInput` (an unusable launch), `BuildError` (not started, or not sealed).
        """
