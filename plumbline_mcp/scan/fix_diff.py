"""What of a fix is text, as a reviewer reads it: before and after, as one unified diff."""

import bisect
import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from approvals.ticket import Ticket
from checks.errors import CheckError
from checks.records.runs import RunFolder
from plumbline_mcp.engines.engine import Approved
from plumbline_mcp.engines.launching import Prepared, hook_files
from plumbline_mcp.scan.planned import PlannedJob
from plumbline_mcp.workspace import RunState, Workspace

MAX_DIFF = 2**16
"""Characters of the diff; what is longer is cut, and says so."""
_MAX_FILE = 2**18
Text = tuple[str, str, str]
"""Name, text before, text after."""


def unified(texts: Iterable[Text]) -> tuple[str, ...]:
    """The lines of one diff of all that differ, each text once."""
    found = {(before, after): name for name, before, after in texts if before != after}
    lines = [
        line
        for (before, after), name in found.items()
        for line in difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"{name}, signed", f"{name}, now", lineterm=""
        )
    ]
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    fitting = bisect.bisect_right(ends, MAX_DIFF)
    cut = (f"[cut here: {len(lines) - fitting} lines more]",) if fitting < len(lines) else ()
    return (*lines[:fitting], *cut)


def as_text(fields: Mapping[str, JsonValue]) -> str:
    """A target's keys, a line each."""
    return json.dumps(fields, indent=1, sort_keys=True)


def hook_texts(workspace: Workspace, ticket: Ticket, signed: PlannedJob, now: Prepared) -> Iterator[Text]:
    """Files that run inside the job (pack, recorder, script), as a sealed run of the signed job kept them.

    Without a sealed run nothing of the old text is left: then their digests alone say that they changed.
    """
    run = _sealed_run(workspace, ticket, signed)
    if run is None:
        return
    new = hook_files(now)
    old = [name for name in run.manifest if name.startswith("hooks/")]
    for name in dict.fromkeys((*old, *new)):
        try:
            before = _read(run.verified(name)) if name in run.manifest else ""
        except CheckError:
            continue  # a changed record is never shown as what was signed
        after = _read(new[name]) if name in new else ""
        yield name, before, after


def _sealed_run(workspace: Workspace, ticket: Ticket, job: PlannedJob) -> RunFolder | None:
    for attempt in range(1, ticket.request.attempts + 1):
        run = workspace.run_of_key(Approved(ticket.id, attempt).key(job.digest))
        if run is not None and run.state is RunState.SEALED:
            return RunFolder.open(workspace.runs / run.run_id)
    return None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_FILE).decode("utf-8", "replace")
