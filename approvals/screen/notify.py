"""Telling the reviewer of new requests with a command of theirs, such as ``notify-send Plumbline``."""

import asyncio
import contextlib
from collections.abc import Sequence

from approvals.ticket import Ticket
from approvals.visible import visible_line

TIMEOUT_S = 10
MAX_TEXT = 200


def notice(tickets: Sequence[Ticket]) -> str:
    """One bounded line about new requests. It begins with words of ours, so it is no option of a command."""
    first = tickets[0]
    more = f" (and {len(tickets) - 1} more)" if len(tickets) > 1 else ""
    text = f"waits for a signature{more}: {first.id} {first.request.action}: {first.request.title}"
    return visible_line(text, MAX_TEXT)


async def tell(command: Sequence[str], tickets: Sequence[Ticket]) -> str:
    """Start the command with the notice as its last argument; "", or what went wrong.

    No shell reads it, it gets no input, and what it prints is not shown. After `TIMEOUT_S` it is killed.
    """
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, notice(tickets), stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    try:
        code = await asyncio.wait_for(process.wait(), TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return f"{command[0]} took more than {TIMEOUT_S} s and was stopped"
    return f"{command[0]} ended with code {code}" if code else ""
