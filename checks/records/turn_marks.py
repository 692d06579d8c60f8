"""What the messages of a workload say of their own place in the loss: ``weight: 0``, ``train: false``, ...

Formats that define it: the fine-tuning files of OpenAI, Mistral and Together (``weight`` of a reply, 0 or 1),
axolotl's chat_template data sets (``train`` or ``training`` of any message, as ``message_field_training``
names it, and ``train_detail`` for a part of its characters), ms-swift and XTuner (``loss`` of a reply),
torchtune's messages (``masked``). A framework that does not know a field passes over it in silence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SWITCHES = ("train", "training", "loss")
_DETAILS = ("train_detail", "training_detail")
MARKS = frozenset({"weight", "masked", *_SWITCHES, *_DETAILS})
"""The fields of a message that are read."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A message's own weight in the loss: 0 leaves it out; None where only parts of its text are meant."""

    name: str
    value: str
    weight: float | None

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


def mark_of(message: Mapping[str, Any]) -> Mark | None:
    """The first field of a message that departs from what holds without one; None where none does.

    Without one, replies weigh 1 and other messages 0. Values that are no weight (a name, a list) say nothing.
    """
    if MARKS.isdisjoint(message):
        return None
    usual = float(message.get("role") == "assistant")
    found = (_read(name, message[name], usual) for name in sorted(MARKS & message.keys()))
    return next((mark for mark in found if mark is not None and mark.weight != usual), None)


def _read(name: str, value: Any, usual: float) -> Mark | None:
    if name in _DETAILS:
        return Mark(name, "parts of the text", None) if isinstance(value, list) and value else None
    if not isinstance(value, bool | int | float) or not math.isfinite(value) or value < 0:
        return None
    if name == "masked":
        return Mark(name, _words(value), 0.0 if value else usual)
    if name == "weight" or isinstance(value, bool) or value in (0, 1):
        # only a switch of axolotl's makes a message supervised that is no reply
        every = name in ("train", "training") or usual
        return Mark(name, _words(value), float(value) if every else usual)
    return None


def _words(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
