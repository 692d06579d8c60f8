"""Runs pip on another interpreter: wheels only, with progress and one clear sentence when it fails."""

import importlib.util
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from checks.check import Progress
from plumbline_mcp.errors import BuildError

TIME_LIMIT_S = 3600
"""After this long pip is stopped: a mirror that never answers must not hang a scan."""

_REDIRECTS = ("TARGET", "PREFIX", "ROOT", "USER", "PYTHON", "DRY_RUN", "REQUIREMENT", "EDITABLE", "REPORT")
"""PIP_ variables that would install elsewhere or something else; every other one is honoured."""

_LISTS = {"Installing collected packages:": "installing", "Successfully installed": "installed"}
"""How lines begin in which pip names every package, and what they say."""


def install(
    python: Path, requirements: Sequence[str], options: Sequence[str], lock: int, progress: Progress
) -> None:
    """Install wheels into the environment of ``python``. Raises `BuildError` with pip's own last error.

    Options that name a list (``-r``) install that; ``requirements`` then only says what it holds.
    ``lock`` is a descriptor that pip inherits, so that it stays locked while pip writes, even without us.
    """
    command = [
        *(sys.executable, "-I", *_pip(), "--python", str(python), "install"),
        *("--only-binary", ":all:", "--no-input", "--no-compile", "--progress-bar", "off"),
        *("--disable-pip-version-check", "--no-warn-script-location", *options),
        *(() if "-r" in options else requirements),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_environment(),
        pass_fds=(lock,),
    )
    timer = threading.Timer(TIME_LIMIT_S, process.kill)
    timer.start()
    try:
        tail = _follow(process, progress)
        code = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
    if code:
        raise _failed(requirements, tail, code)


def _pip() -> list[str]:
    """How pip is started: the installed one, else the wheel that Python carries."""
    if importlib.util.find_spec("pip") is not None:
        return ["-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    for folder in bundled.submodule_search_locations or [] if bundled else []:
        for wheel in sorted(Path(folder, "_bundled").glob("pip-*.whl")):
            return [str(wheel / "pip")]
    raise BuildError(
        f"{sys.executable} has no pip to build an environment with",
        f"install it ({sys.executable} -m ensurepip), or name a ready interpreter",
    )


def _environment() -> dict[str, str]:
    dropped = {f"PIP_{name}" for name in _REDIRECTS}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("PYTHON")
    }


def _follow(process: "subprocess.Popen[str]", progress: Progress) -> deque[str]:
    """Report each line of pip's output; keep the last ones."""
    tail: deque[str] = deque(maxlen=60)
    for line in process.stdout or ():
        text = line.strip()
        if text:
            tail.append(text)
            progress(0, None, _brief(text))
    return tail


def _brief(line: str) -> str:
    """A line of pip for the progress: of a list of all packages their number."""
    for begin, what in _LISTS.items():
        if line.startswith(begin):
            return f"{what} {len(line.removeprefix(begin).split())} packages"
    return line[:160]


def _failed(requirements: Sequence[str], tail: deque[str], code: int) -> BuildError:
    said = _last_error(list(tail)) or f"exit code {code}"
    full = "No space left on device" in " ".join(tail)
    step = (
        "free disk space, then run it again"
        if full
        else "check the versions and that pip reaches an index (PIP_INDEX_URL, PIP_FIND_LINKS)"
    )
    return BuildError(f"pip could not install {', '.join(requirements)[:200]}: {said[:300]}", step)


def _last_error(lines: list[str]) -> str:
    """pip's last error; where it only announces what follows, with what follows."""
    marked = [number for number, line in enumerate(lines) if line.startswith("ERROR:")]
    if not marked:
        return lines[-1] if lines else ""
    said = lines[marked[-1]].removeprefix("ERROR:").strip()
    return " ".join([said, *lines[marked[-1] + 1 :][:2]]) if said.endswith(":") else said
