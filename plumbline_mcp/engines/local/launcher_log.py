"""The log of what starts the ranks: its head on disk at once, its tail when it ends, the rest counted.

Standard library only.
"""

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import IO

_CHUNK = 65_536


class LauncherLog:
    """One stream of the launcher. It is read when `pump` is called, and the launcher waits until then."""

    def __init__(self, path: Path, limit: int) -> None:
        """Write to the new file at ``path``; of more than ``limit`` bytes a half is head, a half tail."""
        self._file: IO[bytes] = path.open("xb", buffering=0)
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reading, False)
        self._head_left = self._tail_most = max(limit // 2, 1)
        self._tail: deque[bytes] = deque()
        self._held = self._dropped = 0

    def pump(self) -> None:
        """Keep what came since. At most a few MiB at once, so that whoever calls gets on with its work."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                data = os.read(self._reading, _CHUNK)
                if not data:
                    return
                self._keep(data)

    def close(self) -> None:
        """Take what is left and add the tail. A full disk cuts the log: the end of the job says so."""
        self.pump()
        os.close(self._reading)
        with contextlib.suppress(OSError), self._file:
            if self._dropped:
                self._file.write(b"\n[%d bytes of this log were dropped here]\n" % self._dropped)
            for part in self._tail:
                self._file.write(part)

    def _keep(self, data: bytes) -> None:
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        with contextlib.suppress(OSError):
            self._file.write(head)
        if rest:
            self._tail.append(rest)
            self._held += len(rest)
        while self._held > self._tail_most:
            over = self._held - self._tail_most
            first = self._tail.popleft()
            if len(first) > over:
                self._tail.appendleft(first[over:])
            self._held -= min(len(first), over)
            self._dropped += min(len(first), over)
