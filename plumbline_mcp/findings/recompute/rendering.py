"""A chat template rendered in a sandbox of its own, bounded in time and in what it may compute.

The environment is the one that templates are written against (Hugging Face, "Chat templates"): blocks are
trimmed, loop controls, ``raise_exception``, ``strftime_now``, a ``tojson`` that escapes nothing, and
``{% generation %}`` as a plain block.
"""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plumbline_mcp.findings.recompute.reading import Cannot

SECONDS = 5.0
"""Time of one render: the slowest of real templates takes a hundredth of a second."""
MAX_CHARACTERS = 2**26
_MAX_PRODUCT = 2**24
Message = dict[str, Any]


class NoText(Exception):
    """Raised where a template gives no text for a conversation."""


class _Generation(Extension):
    """Renders what stands between ``generation`` and ``endgeneration`` as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Bounded(ImmutableSandboxedEnvironment):
    """Refuses products and powers that one step of Python could spend hours or all memory on."""

    intercepted_binops = frozenset({"*", "**", "%", "//"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As Python computes it, within the limit."""
        if operator in ("*", "**"):
            sizes = [each if isinstance(each, int) else len(each) for each in (left, right) if _sized(each)]
            small = all(abs(size) <= _MAX_PRODUCT for size in sizes)
            product = sizes[0] * sizes[1] if len(sizes) == 2 else 0
            if not small or abs(product) > _MAX_PRODUCT or (operator == "**" and max(sizes, default=0) > 64):
                raise SecurityError("a template may not compute numbers or texts of that size")
        return super().call_binop(context, operator, left, right)


def _sized(value: Any) -> bool:
    return isinstance(value, int | str | list | tuple)


def _raise(message: Any) -> None:
    raise TemplateError(str(message))


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class Template:
    """A template with its special tokens and arguments."""

    def __init__(self, source: str, variables: dict[str, Any], date: str | None) -> None:
        environment = _Bounded(
            trim_blocks=True, lstrip_blocks=True, optimized=False,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )  # fmt: skip
        environment.filters["tojson"] = _json
        environment.globals.update(raise_exception=_raise, strftime_now=_clock(date))
        self._variables = variables
        try:
            with _timed():
                self._template = environment.from_string(source)
        except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError, TimeoutError) as error:
            raise Cannot(f"the chat template does not compile: {str(error)[:200]}") from error

    def render(self, messages: list[Message], tools: list[Any] | None, *, prompt: bool = False) -> str:
        """The text of a conversation, with the header of the next reply where ``prompt``. Raises `NoText`."""
        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        try:
            with _timed():
                text = self._template.render({**given, **self._variables})
        except Cannot:
            raise
        except (
            TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
            MemoryError, TimeoutError,
        ) as error:  # fmt: skip
            raise NoText(f"{type(error).__name__}: {str(error)[:200]}") from error
        if len(text) > MAX_CHARACTERS:
            raise NoText("the template wrote too much")
        return text


def _clock(date: str | None) -> Any:
    def strftime_now(layout: str) -> str:
        if date is None:
            raise Cannot("the chat template prints today's date, and none is given")
        return datetime.fromisoformat(date).strftime(layout)

    return strftime_now


@contextmanager
def _timed() -> Iterator[None]:
    """Ends what runs inside after `SECONDS`; works in a process's main thread only. Raises `Cannot`."""
    if threading.current_thread() is not threading.main_thread():
        raise Cannot("chat templates are rendered in a main thread only, where they can be stopped")

    def late(signum: int, frame: Any) -> None:
        raise TimeoutError(f"the template did not end within {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def forms(messages: list[Message]) -> list[list[Message]]:
    """The messages with tool-call arguments as mappings, then as JSON text; once without calls."""
    if not any(message.get("tool_calls") for message in messages):
        return [messages]
    return [[_with_calls(message, text=text) for message in messages] for text in (False, True)]


def _with_calls(value: Any, *, text: bool) -> Any:
    calls = value.get("tool_calls")
    return (
        {**value, "tool_calls": [_call(each, text=text) for each in calls]}
        if isinstance(calls, list)
        else value
    )


def _call(call: Any, *, text: bool) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _call(call["function"], text=text)}
    given = call.get("arguments")
    if "arguments" not in call or isinstance(given, str) == text:
        return call
    if text:
        return {**call, "arguments": json.dumps(given, ensure_ascii=False)}
    try:
        found = json.loads(str(given))
    except (ValueError, RecursionError, TypeError):
        return call
    return {**call, "arguments": found} if isinstance(found, dict) else call
