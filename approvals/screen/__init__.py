"""The terminal screen of the queue. Everything it does can be done with plain verbs too.

Only this module can be imported without the extra `screen` (Textual).
"""

import sys
from collections.abc import Sequence

from approvals.errors import Refused
from approvals.queue import Approvals

INSTALL = "pip install 'plumbline-mcp[screen]'"


def run(approvals: Approvals, notify: Sequence[str] = ()) -> None:
    """Open the screen on the terminal and return when it is left.

    ``notify`` is a command that is told of new requests, see `approvals.screen.notify`. Whatever ends the
    screen, it says what was decided, or NO DECISION. Raises `Refused` without Textual, and whatever made
    the screen fail.
    """
    try:
        from approvals.screen.app import QueueApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise Refused("the screen needs Textual", f"{INSTALL}, or use: plumbline queue list") from error
    app = QueueApp(approvals, notify)
    try:
        app.run()
        app.raise_failure()
    finally:
        sys.stdout.write(app.farewell())
        sys.stdout.flush()
