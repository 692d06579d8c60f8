"""The installed program on a pseudo-terminal: keys go in, every byte that comes out is kept."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence

QUIET_S = 0.8
"""The program is taken to have drawn everything when it wrote nothing for so long."""
PATIENCE_S = 40


class Terminal:
    """A program on a terminal of 80x24."""

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], size: tuple[int, int] = (80, 24)
    ) -> None:
        self.written = b""
        self.process, self._descriptor = pty.fork()
        if self.process == 0:
            os.execve(command[0], list(command), dict(variables))  # noqa: S606 - a pty needs a fork
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def wait_for(self, *texts: str) -> str:
        """Read until one of the texts was written since the last call; what was written since then."""
        start, end = len(self.written), time.monotonic() + PATIENCE_S
        while not any(text in self._text(start) for text in texts):
            assert time.monotonic() < end, f"waited for {texts}: {self._text(start)!r}"
            if not self._read(1.0) and self._ended:
                raise AssertionError(f"ended without {texts}: {self._text(start)!r}")
        return self._text(start)

    def quiet(self) -> str:
        """Read until nothing is written any more."""
        start, end = len(self.written), time.monotonic() + PATIENCE_S
        while self._read(QUIET_S):
            assert time.monotonic() < end, f"it never stops writing: {self._text(start)[-300:]!r}"
        return self._text(start)

    def press(self, *keys: str) -> str:
        """Press keys one after the other, each when the one before was answered."""
        start = len(self.written)
        for key in keys:
            os.write(self._descriptor, key.encode())
            self.quiet()
        return self._text(start)

    def type(self, text: str) -> None:
        """Type a text at once."""
        os.write(self._descriptor, text.encode())

    def end(self) -> tuple[int, str]:
        """Read until the program ends; its exit code and the last that it wrote."""
        start, end = len(self.written), time.monotonic() + PATIENCE_S
        while (self._read(1.0) or not self._ended) and time.monotonic() < end:
            pass
        if not self._ended:  # a program that does not end is a failure, not a test that waits for ever
            os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(status), self._text(start)

    _ended = False

    def _read(self, patience: float) -> bool:
        if self._ended or not select.select([self._descriptor], [], [], patience)[0]:
            return False
        try:
            piece = os.read(self._descriptor, 65536)
        except OSError:
            piece = b""
        self._ended = not piece
        self.written += piece
        return bool(piece)

    def _text(self, start: int) -> str:
        return self.written[start:].decode(errors="replace")
