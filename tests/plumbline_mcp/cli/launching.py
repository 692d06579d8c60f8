"""Starts the installed program as a user does."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

LAUNCHER = Path(sys.executable).parent / "plumbline"
CTRL_C = "\x03"
_SILENT_S = 120
PROMPT = r"(?i)passphrase|\[y/N\]"


def environment(home: Path, **more: str) -> dict[str, str]:
    """A small environment with a workspace of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    return kept | {"PLUMBLINE_HOME": str(home), "OMP_NUM_THREADS": "1"} | more


def plumbline(
    *arguments: str, home: Path, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the launcher from another folder than the checkout, without a terminal."""
    return subprocess.run(
        [str(LAUNCHER), *arguments],
        cwd=cwd or home.parent,
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def on_terminal(
    arguments: tuple[str, ...], answers: tuple[str, ...], variables: dict[str, str], prompt: str = PROMPT
) -> tuple[int, str]:
    """Exit code and every byte written, each prompt gets the next answer; killed when silent for long."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(LAUNCHER, [str(LAUNCHER), *arguments], variables)  # noqa: S606 - a pty needs a fork
    waiting, written, asked = list(answers), b"", 0
    while True:
        if not select.select([terminal], [], [], _SILENT_S)[0]:
            os.kill(child, signal.SIGKILL)
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        written += piece
        prompts = len(re.findall(prompt, written.decode(errors="replace")))
        if waiting and prompts > asked:
            asked = prompts
            answer = waiting.pop(0)
            os.write(terminal, (answer if answer == CTRL_C else f"{answer}\n").encode())
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), written.decode(errors="replace")
