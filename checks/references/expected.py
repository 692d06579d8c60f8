"""What the release says a conversation is: its token ids, and which of them training should supervise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from checks.check import Progress
from checks.errors import NotEvaluated
from checks.records.turn_marks import Mark, mark_of
from checks.records.workload import Conversation
from checks.references import sentinels
from checks.references.rendering import (
    ChatTemplate,
    DateNeeded,
    Message,
    RenderError,
    RenderTimeout,
    limits,
    render_whole,
)
from checks.references.sentinels import Body, SentinelReference, Skeleton
from checks.references.spans import PrefixSpan, Stop, TurnRender, Undecided, prefix_spans, render_turns
from checks.references.tokenization import ReleaseTokenizer, StopTokens
from checks.rules import MAX_TOKENS, RENDER_TIMEOUTS

Supervise = Literal["all", "last", "marked"]
_CHUNK = 128

MUST_NOT, MUST, EITHER, STOP = 0, 1, 2, 3
"""What a mask says of a token. STOP: the turn's stop token. EITHER: template padding after a stop token, a
stop token that the template replaces in the history or shows as the next role header, and every token
around an undecided turn.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant message in the tokens of its conversation.

    ``tokens`` is the region around an undecided one.
    """

    message: int
    tokens: tuple[int, int]
    decided: bool
    supervised: bool
    stop: Stop
    stop_token: int | None = None
    reason: str = ""
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class MarkedTurn:
    """A message that says of itself what it weighs in the loss; ``tokens``: between its neighbours' texts."""

    message: int
    mark: Mark
    tokens: tuple[int, int]
    is_reply: bool

    @property
    def is_unclear(self) -> bool:
        """Whether the release does not say which of its tokens are meant: parts of a text, no reply."""
        return self.mark.weight is None or not self.is_reply


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """A conversation as the release renders it, or the ``problem`` where it renders none.

    ``ids`` int32[T], ``mask`` int8[T]. ``padding``: where the template's own padding after the last turn
    begins (T when there is none). ``bodies``: (message, first token, end token) of each text, where the
    sentinels place it. ``marked``: messages with a weight of their own, in their order.
    """

    index: int
    roles: tuple[str, ...]
    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.int8]
    turns: tuple[Turn, ...] = ()
    padding: int = 0
    bodies: tuple[tuple[int, int, int], ...] = ()
    problem: str = ""
    marked: tuple[MarkedTurn, ...] = ()

    def message_at(self, token: int) -> int | None:
        """The message whose text or turn holds a token, if known."""
        for turn in self.turns:
            if turn.tokens[0] <= token < turn.tokens[1] and turn.decided:
                return turn.message
        return next((message for message, start, end in self.bodies if start <= token < end), None)


@dataclass(frozen=True, slots=True)
class _Rendered:
    conversation: Conversation
    messages: list[Message]
    whole: str
    turns: list[TurnRender]
    skeleton: Skeleton | None
    owners: list[Body]
    problem: str = ""


@dataclass(frozen=True)
class Templates:
    """The template of conversations without tools, and that of conversations that offer some."""

    plain: ChatTemplate
    tools: ChatTemplate

    @classmethod
    def of(cls, template: ChatTemplate) -> "Templates":
        """One template for both."""
        return cls(template, template)

    @property
    def distinct(self) -> tuple[ChatTemplate, ...]:
        """Each template once."""
        return (self.plain,) if self.plain is self.tools else (self.plain, self.tools)


class Reference:
    """The release's own templates and tokenizer, applied to conversations."""

    def __init__(
        self,
        templates: Templates | ChatTemplate,
        tokenizer: ReleaseTokenizer,
        stops: StopTokens,
        supervise: Supervise | None = "all",
    ) -> None:
        """``supervise`` None: all, and what messages with a weight of their own hold may be either."""
        self.templates = Templates.of(templates) if isinstance(templates, ChatTemplate) else templates
        self.tokenizer, self.stops, self.supervise = tokenizer, stops, supervise
        self._sentinels = {id(template): SentinelReference(template) for template in self.templates.distinct}
        self._stop_texts = [
            text for number in sorted(stops.ids) if (text := tokenizer.tokenizer.id_to_token(number))
        ]

    def rows(self, conversations: list[Conversation], progress: Progress) -> list[ExpectedRow]:
        """The expected row of each conversation.

        Raises `NotEvaluated` when the template renders none of them, needs a date or does not end.
        """
        expected: list[ExpectedRow] = []
        tokens = 0
        for row in self._stream(conversations):
            expected.append(row)
            tokens += len(row.ids)
            if tokens > MAX_TOKENS:
                raise NotEvaluated(f"the workload has more than {MAX_TOKENS} tokens", "check it in parts")
            progress(len(expected), len(conversations), "rendering the workload with the release's template")
        problems = [row.problem for row in expected if row.problem]
        if len(problems) == len(expected) and problems:
            raise NotEvaluated(
                f"no conversation can be rendered: {problems[0]}", "see the template and the workload"
            )
        return expected

    def _stream(self, conversations: list[Conversation]) -> Iterator[ExpectedRow]:
        timeouts = 0
        for start in range(0, len(conversations), _CHUNK):
            rendered: list[_Rendered] = []
            with limits():
                for conversation in conversations[start : start + _CHUNK]:
                    try:
                        rendered.append(self._render(conversation))
                    except RenderTimeout as error:
                        timeouts += 1
                        if timeouts >= RENDER_TIMEOUTS:
                            raise NotEvaluated(
                                f"{error}, on {timeouts} conversations",
                                "see the template for an endless loop",
                            ) from error
                        rendered.append(_unrendered(conversation, str(error)))
            yield from self._expect(rendered)

    def _render(self, conversation: Conversation) -> _Rendered:
        template = self.templates.plain if conversation.tools is None else self.templates.tools
        try:
            messages, whole = render_whole(template, conversation.messages, conversation.tools)
        except DateNeeded as error:
            raise NotEvaluated(
                f"{error} ({template.origin}), and no date is given",
                "give the date the rows were made on, for example --date 2026-01-31",
            ) from error
        except RenderTimeout:
            raise
        except RenderError as error:
            return _unrendered(conversation, str(error))
        turns = render_turns(template, messages, conversation.tools, whole)
        skeleton, owners = self._sentinels[id(template)].skeleton(messages, conversation.tools)
        return _Rendered(conversation, messages, whole, turns, skeleton, owners)

    def _expect(self, rendered: list[_Rendered]) -> Iterator[ExpectedRow]:
        encodings = self.tokenizer.encode([item.whole for item in rendered])
        for item, encoding in zip(rendered, encodings, strict=True):
            yield self._row(item, encoding)

    def _row(self, item: _Rendered, encoding: Encoding) -> ExpectedRow:
        ids = np.asarray(encoding.ids, dtype=np.int32)
        roles = tuple(str(message.get("role")) for message in item.conversation.messages)
        mask = np.zeros(len(ids), dtype=np.int8)
        if item.problem:
            return ExpectedRow(item.conversation.index, roles, ids, mask, problem=item.problem)
        spans = prefix_spans(item.whole, encoding, item.turns, item.messages, self.tokenizer, self.stops.ids)
        placed = self._place(item)
        bodies = _token_bodies(placed, encoding) if placed else ()
        chosen = [self._compare(item.whole, span, placed) for span in spans]
        marks = _marks(item.conversation.messages)
        turns = tuple(self._turns(chosen, marks, bodies, len(ids)))
        padding = len(ids)
        for turn, (span, _) in zip(turns, chosen, strict=True):
            if isinstance(span, PrefixSpan):
                padding = span.tokens[1] if span.padding_end == len(ids) else padding
                if turn.supervised:
                    mask[span.tokens[1] : span.padding_end] = EITHER
        _fill(mask, turns)
        marked = _marked(marks, turns, bodies, len(ids))
        if self.supervise not in ("all", "last"):
            _open(mask, marked, every=self.supervise is None)
        return ExpectedRow(item.conversation.index, roles, ids, mask, turns, padding, bodies, marked=marked)

    def _place(self, item: _Rendered) -> list[Body] | None:
        if item.skeleton is None:
            return None
        return sentinels.place(item.whole, item.skeleton, item.owners, sentinels.texts_of(item.messages))

    def _compare(
        self, whole: str, span: PrefixSpan | Undecided, placed: list[Body] | None
    ) -> tuple[PrefixSpan | Undecided, bool]:
        """The prefix reference's answer, unless the sentinels contradict it; and whether they confirm it."""
        if isinstance(span, Undecided):
            return span, False
        body = sentinels.turn_body(whole, placed, span.message, self._stop_texts) if placed else None
        if placed is None or body is None:
            reason = f"the turn's own text holds the control token {span.tag!r}, and the second reference"
            open_ = Undecided(span.message, f"{reason} does not place it")
            return (open_ if span.tag else span), False
        contradiction = sentinels.contradiction(body, span.characters, placed, span.message)
        if contradiction is None:
            return span, True
        return Undecided(span.message, f"references disagree: {contradiction}"), False

    def _turns(
        self,
        chosen: list[tuple[PrefixSpan | Undecided, bool]],
        marks: dict[int, Mark],
        bodies: tuple[tuple[int, int, int], ...],
        length: int,
    ) -> Iterator[Turn]:
        spans = [span for span, _ in chosen]
        for number, (span, confirmed) in enumerate(chosen):
            mark = marks.get(span.message) if self.supervise in (None, "marked") else None
            supervised = (self.supervise != "last" or number == len(spans) - 1) and not _left_out(mark)
            if isinstance(span, PrefixSpan):
                yield Turn(
                    span.message,
                    span.tokens,
                    True,
                    supervised,
                    span.stop,
                    span.stop_token,
                    "",
                    confirmed,
                )
            else:
                region = _region(number, spans, bodies, length)
                yield Turn(span.message, region, False, supervised, Stop.NONE, None, span.reason)


def _unrendered(conversation: Conversation, problem: str) -> _Rendered:
    return _Rendered(conversation, conversation.messages, "", [], None, [], problem)


def _marks(messages: list[Message]) -> dict[int, Mark]:
    found = ((number, mark_of(message)) for number, message in enumerate(messages))
    return {number: mark for number, mark in found if mark is not None}


def _left_out(mark: Mark | None) -> bool:
    return mark is not None and not mark.weight


def _marked(
    marks: dict[int, Mark],
    turns: tuple[Turn, ...],
    bodies: tuple[tuple[int, int, int], ...],
    length: int,
) -> tuple[MarkedTurn, ...]:
    """Each marked message with what lies between the texts of its neighbours."""
    replies = {turn.message for turn in turns}
    spans = [*((turn.message, *turn.tokens) for turn in turns if turn.decided), *bodies]

    def around(message: int) -> tuple[int, int]:
        start = max((end for owner, _, end in spans if owner < message), default=0)
        return start, max(start, min((first for owner, first, _ in spans if owner > message), default=length))

    return tuple(
        MarkedTurn(message, mark, around(message), message in replies) for message, mark in marks.items()
    )


def _open(mask: npt.NDArray[np.int8], marked: tuple[MarkedTurn, ...], *, every: bool) -> None:
    """Either is right where a mark does not say which tokens are meant; with ``every``, where it says 0."""
    for turn in marked:
        if turn.is_unclear or (every and turn.mark.weight == 0):
            mask[turn.tokens[0] : turn.tokens[1]] = EITHER


def _fill(mask: npt.NDArray[np.int8], turns: tuple[Turn, ...]) -> None:
    for turn in turns:
        if turn.supervised and not turn.decided:
            mask[turn.tokens[0] : turn.tokens[1]] = EITHER
    for turn in turns:
        if turn.supervised and turn.decided:
            mask[turn.tokens[0] : turn.tokens[1]] = MUST
            if turn.stop_token is not None:
                mask[turn.stop_token] = STOP if turn.stop is Stop.IN_TURN else EITHER


def _region(
    number: int, spans: list[PrefixSpan | Undecided], bodies: tuple[tuple[int, int, int], ...], length: int
) -> tuple[int, int]:
    """The tokens between the texts before and after an undecided turn, or between its decided neighbours."""
    message = spans[number].message
    before = [span.tokens[1] for span in spans[:number] if isinstance(span, PrefixSpan)]
    after = [span.tokens[0] for span in spans[number + 1 :] if isinstance(span, PrefixSpan)]
    before += [end for owner, _, end in bodies if owner < message]
    after += [start for owner, start, _ in bodies if owner > message]
    start = max(before, default=0)
    return start, max(start, min(after, default=length))


def _token_bodies(placed: list[Body], encoding: Encoding) -> tuple[tuple[int, int, int], ...]:
    """Bodies in tokens: from the first token that holds one of its characters to the end of the last."""
    spans = []
    for body in placed:
        first, last = encoding.char_to_token(body.start), encoding.char_to_token(body.end - 1)
        if first is not None and last is not None:
            spans.append((body.message, int(first), int(last) + 1))
    return tuple(spans)


def stop_names(tokenizer: ReleaseTokenizer, stops: StopTokens) -> str:
    """The stop tokens in words."""
    return ", ".join(repr(tokenizer.tokenizer.id_to_token(number)) for number in sorted(stops.ids)) or "none"


def describe(tokenizer: ReleaseTokenizer, ids: Any) -> str:
    """A few tokens for a message: each with its id and its text."""
    return ", ".join(tokenizer.words(int(number)) for number in ids[:6])
