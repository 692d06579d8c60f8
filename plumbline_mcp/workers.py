"""Starts isolated workers: references and judges run there, never in the server process.

A worker is our own ``python -I`` with an allow-listed environment (``anyio.to_process`` would start
non-isolated children), in a process group of its own that is killed on cancel, time limit and error.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

from checks import errors as check_errors
from checks.check import Progress, silent
from checks.errors import CheckError, NotEvaluated
from checks.rules import RENDER_KILL_SECONDS
from plumbline_mcp import errors
from plumbline_mcp.descendants import kill_descendants
from plumbline_mcp.errors import PlumblineError, WorkerCrashed, WorkerTimedOut
from plumbline_mcp.worker import scratch_of

_COMMAND = [sys.executable, "-I", "-m", "plumbline_mcp.worker"]
_PASSED = frozenset(
    {
        "PATH",
        "HOME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "USER",
        "LOGNAME",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
    }
)
_PASSED_PREFIXES = ("LC_", "XDG_", "PLUMBLINE_", "PIP_", "OPENBLAS_", "SSL_CERT")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "NETRC"})
"""In either case: the worker that builds an environment reaches its index as pip would without us."""
_KINDS = {
    name: kind
    for module in (check_errors, errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, CheckError | PlumblineError)
}
_MAX_LINE = 64 * 2**20
_STDERR_TAIL = 4000
_LAST_WORDS_S = 10


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables a worker sees: the allow-listed ones, and offline switches."""
    passed = {
        name: value
        for name, value in environ.items()
        if name in _PASSED or name.upper() in _PROXIES or name.startswith(_PASSED_PREFIXES)
    }
    return passed | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYDANTIC_ERRORS_INCLUDE_URL": "0",
        "PYTHONUNBUFFERED": "1",
    }


async def call(
    function: str,
    payload: dict[str, Any],
    *,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Run ``package.module:function(payload, progress)`` in an isolated worker and return its JSON answer.

    Raises what the function raised of `CheckError` and `PlumblineError`, `WorkerTimedOut` after
    ``timeout_s`` seconds, `WorkerCrashed` when the process died and `NotEvaluated` when a chat template
    took its processor time.
    """
    request = {"function": function, "payload": payload}
    try:
        with anyio.fail_after(timeout_s):
            return await _isolated(request, progress or silent)
    except TimeoutError as error:
        raise WorkerTimedOut(
            f"{function.partition(':')[2]} did not end within {timeout_s:g} s and was stopped",
            "raise the time limit, or judge a smaller part",
        ) from error


async def _isolated(request: dict[str, Any], progress: Progress) -> Any:
    """One worker from start to end; what it left in its folder for temporary files goes with it."""
    environment = clean_environment(os.environ)
    process = await anyio.open_process(_COMMAND, env=environment, start_new_session=True)
    try:
        return await _converse(process, request, progress)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        shutil.rmtree(scratch_of(process.pid), ignore_errors=True)


async def _converse(process: Process, request: dict[str, Any], progress: Progress) -> Any:
    if process.stdin is None or process.stdout is None or process.stderr is None:  # opened with pipes
        raise WorkerCrashed("a worker was started without its pipes")
    tail = _Tail()
    answer: dict[str, Any] = {}
    async with anyio.create_task_group() as group:
        group.start_soon(tail.drain, process.stderr)
        with contextlib.suppress(anyio.BrokenResourceError, OSError):  # died at start: its exit code says why
            await process.stdin.send(json.dumps(request).encode() + b"\n")
        async for line in _lines(process.stdout):
            answer = json.loads(line)
            if "progress" in answer:
                progress(*answer["progress"])
        if not answer.keys() & {"result", "error"}:
            with anyio.move_on_after(
                _LAST_WORDS_S
            ):  # closed input would end it before it said why it crashed
                await process.wait()
        await process.stdin.aclose()
        await process.wait()
        with anyio.move_on_after(1):  # a grandchild may hold stderr open
            await tail.ended.wait()
        group.cancel_scope.cancel()
    if "result" in answer:
        return answer["result"]
    if "error" in answer:
        raise _rebuilt(answer["error"])
    if process.returncode == -signal.SIGPROF:  # a render's own second limit (checks.references.rendering)
        raise NotEvaluated(
            f"one step of a chat template took more than {RENDER_KILL_SECONDS:g} s of processor time and was "
            "ended with its worker",
            "see the template for a filter or an operator on a huge value",
        )
    raise WorkerCrashed(_death(process.returncode, tail.kept), "report this with the input as a bug")


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in stream:
        rest += chunk
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _MAX_LINE:
            return  # ends without an answer


class _Tail:
    """Keeps the end of a worker's standard error."""

    def __init__(self) -> None:
        self.kept = b""
        self.ended = anyio.Event()

    async def drain(self, stream: ByteReceiveStream) -> None:
        async for chunk in stream:
            self.kept = (self.kept + chunk)[-_STDERR_TAIL:]
        self.ended.set()


def _rebuilt(raised: dict[str, str]) -> Exception:
    kind: type[CheckError | PlumblineError] = _KINDS.get(raised["type"], PlumblineError)
    return kind(raised["message"], raised["next_step"])


def _death(returncode: int | None, stderr: bytes) -> str:
    how = f"exit code {returncode}"
    if returncode is not None and returncode < 0:
        how = f"signal {signal.Signals(-returncode).name}"
        how += " (out of memory?)" if returncode == -signal.SIGKILL else ""
    last = stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"the worker died with {how}" + (f": {last[0]}" if last else "")


async def _end(process: Process) -> None:
    if process.returncode is None:
        kill_descendants(process.pid)  # a probe has a session of its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.aclose()
