"""Which tokens of a conversation the model generates: the prefix difference, turn by turn, in token space.

F is the rendered conversation. For the assistant turn at message i, P is the rendering of the messages
before it with the generation prompt, and R the rendering of the messages up to and including it. What R
holds after P, up to the first stop token, is what inference generates. A turn is *decided* only where F
shows exactly that text in exactly those tokens; otherwise it is undecided, with the reason.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tokenizers import Encoding

from checks.references.rendering import ChatTemplate, Message, RenderError
from checks.references.tokenization import ReleaseTokenizer

_TAGS = re.compile(r"</?think>")
"""What a reasoning model writes itself around its reasoning; many data sets keep it in a reply's content."""
_OTHERWISE = "the template renders this turn otherwise once later messages follow"


class Stop(StrEnum):
    """Where a decided turn has its stop token in the rendered conversation."""

    IN_TURN = "in turn"
    NEXT_HEADER = "next header"
    REPLACED = "replaced"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TurnRender:
    """The renderings of one assistant turn: P and R, or why there are none."""

    message: int
    following: int
    prompt: str = ""
    reply: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PrefixSpan:
    """A decided turn: characters and tokens [start, end) of F, its stop token, and the padding after it.

    ``stop_token`` is in [start, end) for IN_TURN, the token after it for NEXT_HEADER and REPLACED (there it
    is what the template writes instead of the stop token). Template padding are the tokens [end,
    padding_end).
    ``tag``: a think tag that the turn's own text holds, as a control token; such a turn is decided only where
    the second reference confirms it.
    """

    message: int
    characters: tuple[int, int]
    tokens: tuple[int, int]
    stop: Stop
    stop_token: int | None
    padding_end: int
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A turn for which the release's template does not say which tokens are generated."""

    message: int
    reason: str


class _NotDecided(Exception):
    """Carries the reason to the turn's one exit."""


def render_turns(
    template: ChatTemplate, messages: list[Message], tools: list[Any] | None, whole: str
) -> list[TurnRender]:
    """P and R of every run of assistant messages (step 2; step 1 for consecutive ones). Inside `limits()`."""
    renders: list[TurnRender] = []
    for first, following in _runs(messages):
        if following - first > 1:
            reason = "consecutive assistant messages: no prompt lies between them"
            renders.extend(
                TurnRender(number, following, problem=reason) for number in range(first, following)
            )
            continue
        try:
            prompt = template.render(messages[:first], tools, add_generation_prompt=True)
            reply = whole if following == len(messages) else template.render(messages[:following], tools)
            renders.append(TurnRender(first, following, prompt, reply))
        except RenderError as error:
            renders.append(TurnRender(first, following, problem=str(error)))
    return renders


def _runs(messages: list[Message]) -> Iterator[tuple[int, int]]:
    first = None
    for number, message in enumerate([*messages, {}]):
        if message.get("role") == "assistant":
            first = number if first is None else first
        elif first is not None:
            yield first, number
            first = None


def prefix_spans(
    whole: str,
    encoding: Encoding,
    renders: list[TurnRender],
    messages: list[Message],
    tokenizer: ReleaseTokenizer,
    stops: frozenset[int],
) -> list[PrefixSpan | Undecided]:
    """Steps 3 to 8 for each rendered turn of one conversation."""
    view = _View(whole, encoding, tokenizer, stops)
    spans: list[PrefixSpan | Undecided] = []
    for render in renders:
        if render.problem:
            spans.append(Undecided(render.message, render.problem))
            continue
        try:
            spans.append(_decide(view, render, messages[render.message]))
        except _NotDecided as reason:
            spans.append(Undecided(render.message, str(reason)))
    return spans


class _View:
    """F with its tokens: ids and (start, end) offsets in characters."""

    def __init__(
        self, text: str, encoding: Encoding, tokenizer: ReleaseTokenizer, stops: frozenset[int]
    ) -> None:
        self.text, self.tokenizer, self.stops = text, tokenizer, stops
        self.ids: list[int] = encoding.ids
        self.offsets: list[tuple[int, int]] = encoding.offsets
        self.stop_texts = tokenizer.literal_texts(stops)

    def edge(self, character: int) -> int | None:
        """The first token at or after a character, None when a token crosses that character."""
        index = bisect_left(self.offsets, (character,))
        return None if index and self.offsets[index - 1][1] > character else index

    def is_added_at(self, character: int) -> bool:
        """Whether an added token begins at a character, or the text ends there."""
        index = self.edge(character)
        if index is None:
            return False
        return index == len(self.ids) or (
            self.ids[index] in self.tokenizer.added and self.offsets[index][0] == character
        )


def _decide(view: _View, render: TurnRender, message: Message) -> PrefixSpan:
    prompt, reply, start = render.prompt, render.reply, len(render.prompt)
    if not reply.startswith(prompt):
        raise _NotDecided("the rendered reply does not continue the prompt that inference sends")
    if not view.text.startswith(prompt):
        raise _NotDecided(
            "the template renders the history before this turn otherwise once later messages follow"
        )
    tag = _own_think_tag(view, message)
    otherwise = _is_left_before_its_stop(view, reply, start)
    ids, offsets = _reply_tokens(view, prompt, _head(view, reply, start) if otherwise else reply)
    first = bisect_left(offsets, (start,))
    if first and offsets[first - 1][1] > start:
        raise _NotDecided("a token straddles the edge between prompt and reply")
    _check_prompt_ids(view, prompt, ids[:first], offsets[:first])
    if otherwise:
        raise _NotDecided(_OTHERWISE)
    stop = next((index for index in range(first, len(ids)) if ids[index] in view.stops), None)
    if stop is None:
        return replace(_without_stop(view, render, start), tag=tag)
    rest = reply[offsets[stop][1] :]
    if rest.strip() and not any(number in view.stops for number in ids[stop + 1 :]):
        raise _NotDecided("the template writes text after the stop token")
    return replace(_with_stop(view, render, (start, *offsets[stop])), tag=tag)


def _is_left_before_its_stop(view: _View, reply: str, start: int) -> bool:
    """Whether F surely leaves R before R's first stop token: however R is tokenised, the turn is undecided.

    No stop token can begin before the first place that shows a stop token's text.
    """
    if view.stop_texts is None:
        return False
    places = [at for text in view.stop_texts if (at := reply.find(text, start)) >= 0]
    return not view.text.startswith(reply[: min(places, default=len(reply))])


def _head(view: _View, reply: str, start: int) -> str:
    """R up to its first added token after P: what decides where P's last token ends (`segment_safe`)."""
    end = view.tokenizer.control_end(reply, start) if view.tokenizer.segment_safe else None
    return reply if end is None else reply[:end]


def _own_think_tag(view: _View, message: Message) -> str:
    """A think tag of the turn's own text that is a control token; empty without one.

    Any other control token in the text is refused: it is no text that the model is to write.
    """
    found = ""
    for text in _strings(message):
        if control := view.tokenizer.control_text(_TAGS.sub(" ", text)):
            raise _NotDecided(f"the turn's own text holds the control token {control!r}")
        tags = (tag for tag in _TAGS.findall(text) if view.tokenizer.control_text(tag))
        found = found or next(tags, "")
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _reply_tokens(view: _View, prompt: str, reply: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Tokens of R from the last added token of P on, with offsets in R.

    Between two added tokens text is tokenised alike in R and in F, so F's tokens serve where F shows R whole.
    """
    origin = _last_added(view, len(prompt)) if view.tokenizer.segment_safe else None
    if origin is not None and view.text.startswith(reply) and view.is_added_at(len(reply)):
        end = view.edge(len(reply))
        return view.ids[origin:end], view.offsets[origin:end]
    base = 0 if origin is None else view.offsets[origin][0]
    tail = view.tokenizer.tail(reply[base:])
    return tail.ids, [(start + base, end + base) for start, end in tail.offsets]


def _last_added(view: _View, character: int) -> int | None:
    index = bisect_left(view.offsets, (character,)) - 1
    while index >= 0 and not (
        view.ids[index] in view.tokenizer.added and view.offsets[index][1] <= character
    ):
        index -= 1
    return index if index >= 0 else None


def _check_prompt_ids(view: _View, prompt: str, ids: list[int], offsets: list[tuple[int, int]]) -> None:
    """Step 4: ids(R) starts with ids(P)."""
    base = offsets[0][0] if offsets else 0
    if view.tokenizer.tail(prompt[base:]).ids != ids:
        raise _NotDecided("the prompt's own tokens are not the first tokens of the rendered reply")


def _without_stop(view: _View, render: TurnRender, start: int) -> PrefixSpan:
    end = len(render.reply)
    first, last = _edges(view, render.reply, start, end)
    header = last < len(view.ids) and view.ids[last] in view.stops
    return PrefixSpan(
        render.message,
        (start, end),
        (first, last),
        Stop.NEXT_HEADER if header else Stop.NONE,
        last if header else None,
        last,
    )


def _with_stop(view: _View, render: TurnRender, marks: tuple[int, int, int]) -> PrefixSpan:
    start, stop, end = marks
    reply = render.reply
    if not view.text.startswith(reply[:end]):
        if not (view.text.startswith(reply[:stop]) and stop < len(view.text) and view.is_added_at(stop)):
            raise _NotDecided(_OTHERWISE)
        first, last = _edges(view, reply, start, stop)
        return PrefixSpan(render.message, (start, stop), (first, last), Stop.REPLACED, last, last + 1)
    first, last = _edges(view, reply, start, end)
    padding_end = last
    if view.text.startswith(reply[end:], end):
        while padding_end < len(view.ids) and view.offsets[padding_end][1] <= len(reply):
            padding_end += 1
    return PrefixSpan(render.message, (start, end), (first, last), Stop.IN_TURN, last - 1, padding_end)


def _edges(view: _View, reply: str, start: int, end: int) -> tuple[int, int]:
    """Steps 7 and 8: F shows R up to the end, and no token of F crosses an edge."""
    if not view.text.startswith(reply[:end]):
        raise _NotDecided(_OTHERWISE)
    first, last = view.edge(start), view.edge(end)
    if first is None or last is None:
        raise _NotDecided("a token of the whole conversation straddles an edge of the turn")
    return first, last
