"""What can go wrong around the checks; messages become text only at the edges (tools, command line).

    PlumblineError
    ├── UsageError          the caller named something that is not there or not allowed (exit code 3)
    ├── WorkerError         a worker process did not answer
    │   ├── WorkerCrashed       it died: signal, exit code and the end of its stderr
    │   └── WorkerTimedOut      it was stopped at its time limit
    ├── WorkspaceError      the workspace cannot be used (network file system, newer version, disk full)
    └── BuildError          an environment could not be built, or a job not be launched

`checks.errors.CheckError` is the matching tree of the checks themselves.
"""


class PlumblineError(Exception):
    """Base: one sentence of what happened with the value met, and the next step."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class UsageError(PlumblineError):
    """Raised when an argument cannot be used: an unknown check, verdict, run or option."""


class WorkerError(PlumblineError):
    """Base of the failures of an isolated worker process."""


class WorkerCrashed(WorkerError):
    """Raised when a worker ended without an answer."""


class WorkerTimedOut(WorkerError):
    """Raised when a worker was stopped at its time limit."""


class WorkspaceError(PlumblineError):
    """Raised when the workspace cannot be opened or written."""


class BuildError(PlumblineError):
    """Raised when an environment could not be built, or a job not be launched."""
