"""The command line: one file a verb. Errors become one sentence and an exit code here, and nowhere else."""

from plumbline_mcp.cli.program import main

__all__ = ["main"]
