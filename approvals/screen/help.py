"""The keys, on one page."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = """\
1 2 3          waiting, decided, expired
up, down       another request
/              only those with these words
Enter          open it (decides nothing); Esc goes back
Tab, arrows    summary, diff, statement, evidence, history, raw
j k space b g G  scroll by a line, by a page, to the ends
a              approve; off until the diff was shown to its end
x              reject; it also stops what was approved and is unused
Ctrl+Y         in the dialog: sign the bytes that are shown
q              leave; what was not signed has NO DECISION

Deciding is signing: ssh-keygen asks for the passphrase, or the touch.
The verbs of plumbline queue do all of this without the screen.

Esc closes this page."""


class HelpScreen(ModalScreen[None]):
    """Shown over the queue until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss(None)")]

    def compose(self) -> ComposeResult:
        """One text."""
        yield Static(KEYS, id="help", markup=False)
