"""What the release makes of each conversation: its token ids, and which of them the model generates.

For the reply at message i let P be the rendering of what comes before it with the header of a reply, R the
rendering up to and with it, W the whole conversation. R holds, behind P, what inference generates, up to its
first stop token. A reply is decided where W shows that text at that place, cut into whole tokens.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from plumbline_mcp.findings.recompute.conversations import Conversation, Message
from plumbline_mcp.findings.recompute.export_files import templates_in
from plumbline_mcp.findings.recompute.reading import Cannot, place_in, read_json
from plumbline_mcp.findings.recompute.release import document
from plumbline_mcp.findings.recompute.rendering import NoText, Template, forms

NO, MUST, EITHER = 0, 1, 2
"""What a mask says of a token: not supervised, supervised, or not judged."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_THINK = re.compile(r"</?think>")


@dataclass(frozen=True)
class Reply:
    """One reply in the tokens of its row. ``stop``: the token that has to be supervised so that it ends."""

    message: int
    tokens: tuple[int, int]
    supervised: bool
    reason: str = ""
    stop: int | None = None
    never_stops: bool = False


@dataclass(frozen=True)
class ExpectedRow:
    """``ids`` int64[T], ``mask`` int8[T]; ``end``: where the text behind the last stop begins."""

    index: int
    ids: np.ndarray = field(repr=False)
    mask: np.ndarray = field(repr=False)
    replies: tuple[Reply, ...] = ()
    end: int = 0
    problem: str = ""

    def reply_at(self, token: int) -> int | None:
        """The message of the decided reply that holds a token."""
        found = (r.message for r in self.replies if not r.reason and r.tokens[0] <= token < r.tokens[1])
        return next(found, None)


class Release:
    """The release's tokenizer, special tokens, stop ids and templates."""

    def __init__(
        self, folder: Path, template: str | None, arguments: dict[str, Any], date: str | None
    ) -> None:
        raw = place_in(folder, "tokenizer.json")
        if raw.stat().st_size > 2**28:
            raise Cannot("tokenizer.json is too large")
        try:
            self.tokenizer = Tokenizer.from_file(str(raw))
        except Exception as error:
            raise Cannot(f"tokenizer.json cannot be loaded: {str(error)[:200]}") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.post_processor = None
        self.added = {n: str(token.content) for n, token in self.tokenizer.get_added_tokens_decoder().items()}
        settings = dict(document(folder, "special_tokens_map.json") or {})
        settings |= {
            k: v for k, v in (document(folder, "tokenizer_config.json") or {}).items() if v is not None
        }
        self.special = {name: text for name in _ROLES if (text := _text(settings.get(name)))}
        self.stops, self.named = self._stops(folder)
        sources = {"default": template} if template is not None else templates_in(folder)
        if "default" not in sources:
            raise Cannot("the release has no chat template")
        made = {
            name: Template(source, {**self.special, **arguments}, date)
            for name, source in sources.items()
            if name in ("default", "tool_use")
        }
        self.plain, self.tooled = made["default"], made.get("tool_use", made["default"])

    def _stops(self, folder: Path) -> tuple[frozenset[int], bool]:
        """Ids that end a generation, and whether generation_config.json names them."""
        path = folder / "generation_config.json"
        about = read_json(path) if path.exists() else {}
        named = about.get("eos_token_id") if isinstance(about, dict) else None
        listed = named if isinstance(named, list) else [named]
        ids = frozenset(each for each in listed if type(each) is int)
        if ids:
            return ids, True
        eos = self.tokenizer.token_to_id(self.special.get("eos_token", ""))
        return (frozenset() if eos is None else frozenset({eos})), False

    @property
    def padding(self) -> frozenset[int]:
        """Ids that may pad a row."""
        names = (self.special.get(name, "") for name in ("pad_token", "eos_token"))
        return frozenset(n for name in names if (n := self.tokenizer.token_to_id(name)) is not None)

    def row(self, conversation: Conversation, *, last_only: bool) -> ExpectedRow:
        """What the release makes of one conversation."""
        template = self.plain if conversation.tools is None else self.tooled
        problem = ""
        for messages in forms(conversation.messages):
            try:
                text = template.render(messages, conversation.tools)
            except NoText as error:
                problem = problem or str(error)
                continue
            return self._expected(template, conversation, messages, text, last_only)
        return ExpectedRow(conversation.index, np.zeros(0, np.int64), np.zeros(0, np.int8), problem=problem)

    def _expected(
        self,
        template: Template,
        conversation: Conversation,
        messages: list[Message],
        text: str,
        last_only: bool,
    ) -> ExpectedRow:
        view = _View(self, text)
        mask, end = np.zeros(len(view.ids), np.int8), len(view.ids)
        numbers = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
        replies, open_ends = [], list[tuple[int, int]]()
        for number in numbers:
            supervised = not last_only or number == numbers[-1]
            reply, padding = view.reply(template, conversation.tools, messages, number, supervised)
            replies.append(reply)
            if not reply.reason and padding == len(view.ids):
                end = min(end, reply.tokens[1])
            if supervised and not reply.reason:
                open_ends.append((reply.tokens[1], padding))
        for start, stop in open_ends:
            mask[start:stop] = EITHER
        for reply in replies:
            if reply.supervised:
                mask[reply.tokens[0] : reply.tokens[1]] = EITHER if reply.reason else MUST
        return ExpectedRow(conversation.index, view.ids, mask, tuple(replies), end)


def _text(value: Any) -> str | None:
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


class _View:
    """W with its tokens: ids, and where each begins and ends in characters."""

    def __init__(self, release: Release, text: str) -> None:
        self.release, self.text = release, text
        encoding = release.tokenizer.encode(text, add_special_tokens=False)
        self.ids = np.array(encoding.ids, np.int64)
        self.starts = np.array([start for start, _ in encoding.offsets], np.int64)
        self.ends = np.array([end for _, end in encoding.offsets], np.int64)

    def edge(self, character: int) -> int | None:
        """The first token at or after a character; None where a token lies across it."""
        at = int(np.searchsorted(self.starts, character))
        return None if at and self.ends[at - 1] > character else at

    def reply(
        self,
        template: Template,
        tools: list[Any] | None,
        messages: list[Message],
        number: int,
        supervised: bool,
    ) -> tuple[Reply, int]:
        """One reply, and where the template's text behind its stop token ends."""
        try:
            return self._decided(template, tools, messages, number, supervised)
        except NoText as reason:
            return Reply(number, (0, len(self.ids)), supervised, str(reason)), 0

    def _decided(
        self,
        template: Template,
        tools: list[Any] | None,
        messages: list[Message],
        number: int,
        supervised: bool,
    ) -> tuple[Reply, int]:
        around = messages[number - 1 : number] + messages[number + 1 : number + 2]
        if number and any(message.get("role") == "assistant" for message in around):
            raise NoText("consecutive replies: no prompt lies between them")
        if any(
            t in text for text in _strings(messages[number]) for t in self.release.added.values() if t.strip()
        ):
            raise NoText("the reply's own text holds a control token")
        before = template.render(messages[:number], tools, prompt=True)
        last = number == len(messages) - 1
        upto = self.text if last else template.render(messages[: number + 1], tools)
        if not upto.startswith(before) or not self.text.startswith(before):
            raise NoText("the history before the reply is rendered otherwise in the whole conversation")
        first = self.edge(len(before))
        prompt = self.release.tokenizer.encode(before, add_special_tokens=False).ids
        if first is None or prompt != self.ids[:first].tolist():
            raise NoText("a token lies across the edge between prompt and reply")
        stop = self._first_stop(upto, len(before))
        if stop is None:
            return self._without_stop(upto, number, first, supervised)
        return self._with_stop(upto, number, first, stop, supervised)

    def _first_stop(self, text: str, start: int) -> tuple[int, int] | None:
        """Characters [start, end) of the first stop token behind a place."""
        words = [
            self.release.added.get(n) or self.release.tokenizer.id_to_token(n) for n in self.release.stops
        ]
        found = [(at, at + len(word)) for word in words if word and (at := text.find(word, start)) >= 0]
        return min(found, key=lambda each: (each[0], -each[1]), default=None)

    def _without_stop(self, upto: str, number: int, first: int, supervised: bool) -> tuple[Reply, int]:
        end = self.edge(len(upto)) if self.text.startswith(upto) else None
        if end is None:
            raise NoText("the reply is rendered otherwise once later messages follow")
        header = end < len(self.ids) and int(self.ids[end]) in self.release.stops
        stop = end if header else None
        return Reply(number, (first, end), supervised, stop=stop, never_stops=not header), end + header

    def _with_stop(
        self, upto: str, number: int, first: int, stop: tuple[int, int], supervised: bool
    ) -> tuple[Reply, int]:
        rest = upto[stop[1] :]
        if rest.strip() and self._first_stop(upto, stop[1]) is None:
            raise NoText("the template writes text after the stop token")
        if self.text.startswith(upto[: stop[1]]):
            end = self.edge(stop[1])
            if end is None:
                raise NoText("a token lies across the edge of the reply")
            padding = end
            if self.text.startswith(upto):
                padding = max(end, int(np.searchsorted(self.ends, len(upto), side="right")))
            return Reply(number, (first, end), supervised, stop=end - 1), padding
        end = self.edge(stop[0])
        shown = self.text.startswith(upto[: stop[0]]) and end is not None and end < len(self.ids)
        if not shown or end is None or int(self.ids[end]) not in self.release.added:
            raise NoText("the reply is rendered otherwise once later messages follow")
        return Reply(
            number, (first, end), supervised
        ), end + 1  # the history shows another token than the stop


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield _THINK.sub(" ", value)
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(each)
