"""Raw records as resources: whole verdicts, and the sealed files of a run by byte range."""

import json
import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError

from approvals.visible import visible, visible_line
from checks.errors import CheckError, Inconclusive
from plumbline_mcp.errors import PlumblineError
from plumbline_mcp.server.located import open_inside, sealed_run
from plumbline_mcp.server.roles import READERS, require_role
from plumbline_mcp.server.toolset import Toolset

DEFAULT_LENGTH = 2**16
MAX_LENGTH = 2**20
VERIFIED_UP_TO = 2**28
"""Files up to this size are hashed against the manifest before a range is read; larger ones by size alone."""


def add_resources(server: MCPServer[None], toolset: Toolset) -> None:
    """Add the resource templates."""

    @server.resource(
        "plumbline://verdicts/{verdict_id}",
        name="verdict",
        description="A whole stored verdict with the inputs it was asked for; non-ASCII is escaped.",
        mime_type="application/json",
    )
    def verdict(verdict_id: str) -> str:
        try:
            require_role("this resource", READERS)
            stored = toolset.workspace.verdict(verdict_id)
        except (CheckError, PlumblineError) as error:
            raise _refused(error) from error
        return json.dumps(stored.model_dump(mode="json"), indent=1, ensure_ascii=True)

    @server.resource(
        "plumbline://runs/{run_id}/files/{+name}{?offset,length}",
        name="run-file",
        description=f"Bytes of a sealed file of a run, as recorded: untrusted. At most {MAX_LENGTH} a read.",
        mime_type="application/octet-stream",
    )
    def run_file(run_id: str, name: str, offset: int = 0, length: int = DEFAULT_LENGTH) -> bytes:
        return _bytes(toolset, run_id, name, offset, length)

    @server.resource(
        "plumbline://runs/{run_id}/text/{+name}{?offset,length}",
        name="run-text",
        description="The same bytes as text with every control and invisible character escaped: untrusted.",
        mime_type="text/plain",
    )
    def run_text(run_id: str, name: str, offset: int = 0, length: int = DEFAULT_LENGTH) -> str:
        raw = _bytes(toolset, run_id, name, offset, length)
        return visible(raw.decode("utf-8", "replace"), 10 * MAX_LENGTH)


def _bytes(toolset: Toolset, run_id: str, name: str, offset: int, length: int) -> bytes:
    if not (offset >= 0 and 1 <= length <= MAX_LENGTH):
        raise ResourceError(f"offset starts at 0 and length is 1 to {MAX_LENGTH}, not {offset} and {length}")
    try:
        require_role("this resource", READERS)
        run = sealed_run(toolset, run_id)
        recorded = run.manifest.get(name)
        if recorded is None or recorded[1] <= VERIFIED_UP_TO:
            run.verified(name)
        with open_inside(run.path, name) as descriptor:
            if recorded and os.fstat(descriptor).st_size != recorded[1]:
                raise Inconclusive(f"run {run_id}: {name} has another size than when it was sealed")
            return os.pread(descriptor, length, offset)
    except (CheckError, PlumblineError) as error:
        raise _refused(error) from error


def _refused(error: CheckError | PlumblineError) -> ResourceError:
    next_step = f". Next: {visible_line(error.next_step, 400)}" if error.next_step else ""
    return ResourceError(visible_line(error.message, 400) + next_step)
