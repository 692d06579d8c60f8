"""The second reference for turn bodies: texts are replaced by sentinels, rendered, and mapped back.

Each text (content, reasoning) is replaced by a word that occurs nowhere else. The rendering then shows,
between the sentinels, exactly what the template itself writes. Laying that skeleton over the real rendering
places each text in it, whatever the prefix difference (`spans`) says: the two share the renderer and nothing
else.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from checks.references.rendering import ChatTemplate, Message, RenderError

_SENTINEL = re.compile(r"Qz7sentinel(\d{6})x9Zq")
_TAGS = re.compile(r"(\s*</?think>\s*)")
_TEXT_KEYS = ("content", "reasoning_content", "thinking", "reasoning")
_MAX_SKELETONS = 4096


@dataclass(frozen=True, slots=True)
class Body:
    """Where a text of a message stands in the rendered conversation (characters)."""

    message: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Skeleton:
    """What the template writes itself: ``literals[k]`` stands before ``fields[k]``; one more literal ends it.

    ``fields`` are numbers of texts in the order in which the template prints them.
    """

    literals: tuple[str, ...]
    fields: tuple[int, ...]


class SentinelReference:
    """Places the texts of conversations.

    Skeletons are kept, because most conversations share a few shapes.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._skeletons: dict[str, Skeleton | None] = {}

    def skeleton(
        self, messages: list[Message], tools: list[Any] | None
    ) -> tuple[Skeleton | None, list[Body]]:
        """The skeleton of a conversation's shape and its texts' numbers (as bodies without a place).

        None when the template does not render sentinels. Inside `limits()`.
        """
        masked, owners = _masked(messages)
        shape = json.dumps([masked, tools], sort_keys=False)
        if shape not in self._skeletons:
            if len(self._skeletons) >= _MAX_SKELETONS:
                self._skeletons.clear()
            self._skeletons[shape] = self._render(masked, tools)
        return self._skeletons[shape], [Body(owner, 0, 0) for owner in owners]

    def _render(self, masked: list[Message], tools: list[Any] | None) -> Skeleton | None:
        try:
            text = self._template.render(masked, tools)
        except RenderError:
            return None
        pieces = _SENTINEL.split(text)
        return Skeleton(tuple(pieces[0::2]), tuple(int(number) for number in pieces[1::2]))


def _masked(messages: list[Message]) -> tuple[list[Message], list[int]]:
    """The messages with every non-blank text replaced by its sentinel, and who owns each text.

    Think tags stay, and what is before, between and behind them are texts of their own: templates take a
    reply apart at its tags.
    """
    masked, owners = [], list[int]()
    for number, message in enumerate(messages):
        copy = dict(message)
        given: dict[str, str] = {}
        for key, parts in _parts_of(message):
            for at, text in enumerate(parts):
                if _is_numbered(at, text) and (text not in given or key == "content"):
                    given[text] = f"Qz7sentinel{len(owners):06d}x9Zq"
                    owners.append(number)
            copy[key] = "".join(
                given[text] if _is_numbered(at, text) else text for at, text in enumerate(parts)
            )
        masked.append(copy)
    return masked, owners


def texts_of(messages: list[Message]) -> list[str]:
    """The texts that `_masked` numbers, in the same order."""
    texts = []
    for message in messages:
        given = set()
        for key, parts in _parts_of(message):
            for at, text in enumerate(parts):
                if _is_numbered(at, text) and (text not in given or key == "content"):
                    given.add(text)
                    texts.append(text)
    return texts


def _parts_of(message: Message) -> Iterator[tuple[str, list[str]]]:
    """Each text field of a message, taken apart at its think tags: texts at even places, tags at odd ones."""
    for key in _TEXT_KEYS:
        text = message.get(key)
        if isinstance(text, str) and text.strip():
            yield key, _TAGS.split(text)


def _is_numbered(place: int, text: str) -> bool:
    return place % 2 == 0 and bool(text.strip())


def place(whole: str, skeleton: Skeleton, owners: list[Body], texts: list[str]) -> list[Body] | None:
    """The place of every text in the real rendering; None when the skeleton does not fit it."""
    if not whole.startswith(skeleton.literals[0]):
        return None
    position, bodies = len(skeleton.literals[0]), list[Body]()
    for field, literal in zip(skeleton.fields, skeleton.literals[1:], strict=True):
        final = len(bodies) + 1 == len(skeleton.fields)
        shown = _shown(whole, position, texts[field], literal, final)
        if shown is None:
            return None
        bodies.append(Body(owners[field].message, position, position + len(shown)))
        position += len(shown) + len(literal)
    return bodies if position == len(whole) else None


def _shown(whole: str, position: int, text: str, literal: str, final: bool) -> str | None:
    """The form of a text that stands at a position and is followed by the literal."""
    if whole.startswith(text, position) and whole.startswith(literal, position + len(text)):
        end = position + len(text) + len(literal)
        if not final or end == len(whole):
            return text
    for form in _forms(text):
        end = position + len(form) + len(literal)
        fits = whole.startswith(form, position) and whole.startswith(literal, position + len(form))
        if fits and (not final or end == len(whole)):
            return form
    return None


def _forms(text: str) -> list[str]:
    """How templates print a text: stripped on a side, without line breaks at its ends, or as JSON."""
    stripped = [
        text.rstrip(),
        text.lstrip(),
        text.strip(),
        text.strip("\n"),
        text.lstrip("\n"),
        text.rstrip("\n"),
    ]
    return [*sorted(set(stripped), key=len, reverse=True), json.dumps(text, ensure_ascii=False)[1:-1]]


@dataclass(frozen=True, slots=True)
class BodySpan:
    """What the sentinels say about one turn: its own texts, and the first stop text after them (or None)."""

    start: int
    end: int
    stop: tuple[int, int] | None


def turn_body(whole: str, bodies: list[Body], message: int, stop_texts: list[str]) -> BodySpan | None:
    """The span of a message's own texts and the stop text that follows; None when it prints none."""
    own = [body for body in bodies if body.message == message]
    if not own:
        return None
    start, end = own[0].start, own[-1].end
    if any(start <= body.start < end for body in bodies if body.message != message):
        return None
    limit = min(
        (body.start for body in bodies if body.start >= end and body.message != message), default=len(whole)
    )
    found = [(at, at + len(text)) for text in stop_texts if (at := whole.find(text, end, limit)) >= 0]
    return BodySpan(start, end, min(found, default=None))


def contradiction(
    whole: BodySpan, characters: tuple[int, int], bodies: list[Body], message: int
) -> str | None:
    """Why the two references disagree about a turn; None when they agree."""
    start, end = characters
    if not start <= whole.start <= whole.end <= end:
        return "the turn's own text lies outside the generated span"
    if any(body.start < end and start < body.end for body in bodies if body.message != message):
        return "the generated span covers another message"
    if whole.stop is not None and end not in whole.stop:
        return "the generated span does not end at the first stop token"
    return None
