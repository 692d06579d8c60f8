"""The Textual application around the queue's screen."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.console import RenderableType
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from approvals.queue import Approvals
from approvals.screen.queue_screen import QueueScreen

NO_DECISION = "NO DECISION\n"


class QueueApp(App[None]):
    """One screen in the terminal's own colours (none with NO_COLOR); no palette, no titles of others."""

    CSS_PATH = "queue.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", priority=True)]

    def __init__(
        self, approvals: Approvals, notify: Sequence[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(ansi_color=True)
        self.queue = QueueScreen(approvals, notify, clock)
        self._left = False
        self._signal: signal.Signals | None = None
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def on_mount(self) -> None:
        """Take signals in the event loop: Textual can swallow an interrupt while it awaits something."""
        for number, handler in self._handlers.items():
            if handler is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        self._signal = number
        super().exit()

    def get_default_screen(self) -> Screen[None]:
        """The queue itself."""
        return self.queue

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave, because the reviewer said so."""
        self._left = True
        super().exit(result, return_code, message)

    def raise_failure(self) -> None:
        """Raise what ended the screen unless it was left: interrupted, Textual ends in silence."""
        if self._exception is not None:
            raise self._exception
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._signal is not None:
            os.kill(os.getpid(), self._signal)  # the program's own handler knows its exit code
        if not self._left:
            raise KeyboardInterrupt

    def farewell(self) -> str:
        """What is said once the screen is gone."""
        lines = [f"signed: {ticket.id}, {ticket.state.value}\n" for ticket in self.queue.decided]
        return "".join(lines) or NO_DECISION

    def _fatal_error(self) -> None:
        """End without Textual's own report: its tracebacks hold texts of others. `raise_failure` has it."""
        self._close_messages_no_wait()
