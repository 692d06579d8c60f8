"""SIGTERM and SIGHUP end the program as Ctrl-C does: what was begun is undone, nothing keeps running."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from plumbline_mcp.cli.options import ExitCode

_EXIT_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is `KeyboardInterrupt` in here; before, while libraries load, and after it ends us without one.

    Where it is ignored, as in a background job of a shell, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class Stopping:
    """Which signal stopped the program; Ctrl-C unless another one came first."""

    def __init__(self) -> None:
        self._received = signal.SIGINT

    @property
    def code(self) -> ExitCode:
        """The exit code, as shells count it."""
        return _EXIT_CODES[self._received]

    def install(self) -> None:
        """Catch both signals. One that is ignored stays so: that is what ``nohup`` asks for."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(number)
        for each in (signal.SIGTERM, signal.SIGHUP):  # a closing terminal sends several: the first one counts
            signal.signal(each, signal.SIG_IGN)
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in a background job of a shell
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)
