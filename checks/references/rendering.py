"""Own rendering of a release's chat template: Jinja as the template expects it, and bounded.

Nothing goes through transformers. The environment follows what chat templates are written against (Hugging
Face's "Chat templates" documentation): ``trim_blocks``, ``lstrip_blocks``, loop controls,
``raise_exception``, ``strftime_now``, a ``tojson`` that escapes nothing, and ``{% generation %}`` as a
plain block. A template is untrusted: nothing of it is evaluated while it compiles, and it runs in Jinja's
immutable sandbox under a time, a memory and an output limit.
"""

import json
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from checks.errors import BadInput, NotEvaluated
from checks.rules import (
    MAX_RENDERED_CHARACTERS,
    MAX_TEMPLATE_BYTES,
    MAX_TEMPLATE_INTEGER_BITS,
    RENDER_KILL_SECONDS,
    RENDER_MEMORY_BYTES,
    RENDER_SECONDS,
)

Message = dict[str, Any]


class RenderError(Exception):
    """Raised when a template gives no text for a conversation: it raised, took too long or wrote too much."""


class RenderTimeout(RenderError):
    """Raised when one render passes the time limit."""


class DateNeeded(RenderError):
    """Raised when a template prints today's date and no date was given."""


class _OutOfTime(BaseException):
    """Leaves a render from the signal handler; no template code can catch it."""


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` is rendered as if it were not there.

    It marks what a model generates.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body's own nodes, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body, lineno=line)]


class _PlainNamespace(Namespace):
    """A namespace that keeps no name of Python's own machinery."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a template may not store {name!r} in a namespace")
        super().__setitem__(name, value)


class _LateCode(CodeGenerator):
    """Code that evaluates every expression when the template runs, inside the limits, and none before."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


_DICT_ATTRIBUTES = frozenset(dir(dict))


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox without arithmetic that one step of Python could spend hours on."""

    code_generator_class = _LateCode
    intercepted_binops = frozenset({"**", "*", "//", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox says; ``message.role`` at once, without the exception that a dict raises first."""
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the sandbox says; at once for text, and for a namespace, whose names are the template's data."""
        if type(obj) is str or type(obj) is _PlainNamespace:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Powers, products, quotients and remainders, of whole numbers within a bound."""
        if isinstance(left, int) and isinstance(right, int):
            bits = (
                left.bit_length() * max(right, 1)
                if operator == "**"
                else left.bit_length() + right.bit_length()
            )
            if bits > MAX_TEMPLATE_INTEGER_BITS:
                raise SecurityError(f"a template may not compute with numbers of {bits} bits")
        return super().call_binop(context, operator, left, right)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _dict(*pairs: Any, **items: Any) -> dict[Any, Any]:
    return dict(*pairs, **items)


def _clock(date: datetime | None) -> Callable[[str], str]:
    def strftime_now(layout: str) -> str:
        if date is None:
            raise DateNeeded("the chat template prints today's date")
        return date.strftime(layout)

    return strftime_now


_FAILURES = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled chat template with what it is rendered with.

    ``variables`` are the special tokens by name (``bos_token``...) and the template arguments of the recipe.
    """

    def __init__(
        self, source: str, origin: str, variables: Mapping[str, Any], date: datetime | None = None
    ) -> None:
        self.source, self.origin, self.variables, self.date = source, origin, dict(variables), date
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_clock(self.date),
            dict=_dict,
            namespace=_PlainNamespace,
        )
        try:
            compiled = environment.from_string(self.source)
        except (TemplateError, RecursionError, MemoryError, ValueError, SyntaxError) as error:
            raise NotEvaluated(
                f"the chat template {self.origin} does not compile: {error}",
                "give the release's own template",
            ) from error
        self._environment, self._render = environment, compiled.render

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that the template looks up."""
        return frozenset(meta.find_undeclared_variables(self._environment.parse(self.source)))

    def render(
        self, messages: list[Message], tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> str:
        """The text of a conversation. Messages are plain JSON data; the sandbox cannot change them.

        Raises `RenderError`. Limits hold inside `limits()`.
        """
        arguments = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.variables,
        }
        try:
            with _timed():
                text = self._render(arguments)
        except _OutOfTime:
            raise RenderTimeout(f"the chat template did not end within {RENDER_SECONDS:g} s") from None
        except RenderError:
            raise
        except MemoryError:
            raise RenderError("the chat template asked for more memory than the limit") from None
        except _FAILURES as error:
            raise RenderError(
                f"the chat template raised {type(error).__name__}: {str(error)[:300]}"
            ) from error
        if len(text) > MAX_RENDERED_CHARACTERS:
            raise RenderError(
                f"the chat template wrote {len(text)} characters (limit {MAX_RENDERED_CHARACTERS})"
            )
        return text


@contextmanager
def _timed() -> Iterator[None]:
    """Time for one render, inside `limits()`.

    A signal ends a template between two steps of Python. A step that never returns (one call into C) is ended
    with its process, which the kernel does at a second limit.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0] != 0.0 or not _limits_hold():
        yield
        return
    try:
        signal.setitimer(signal.ITIMER_PROF, RENDER_KILL_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, RENDER_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limits_hold() -> bool:
    return signal.getsignal(signal.SIGALRM) is _stop


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _OutOfTime


@contextmanager
def limits() -> Iterator[None]:
    """Bound every render inside: time by interval timers, memory by the process's soft address limit.

    Works in a process's main thread (signals reach no other). Raises `NotEvaluated` elsewhere, because there
    an endless template could not be stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        raise NotEvaluated(
            "chat templates are rendered in a process's main thread only, where they can be stopped",
            "run the check through the server or the command line",
        )
    previous = signal.signal(signal.SIGALRM, _stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space() + RENDER_MEMORY_BYTES
    bound = min((limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY), default=wanted)
    resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, previous)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def template_source(release: Path, configuration: Mapping[str, Any], tools: bool = False) -> tuple[str, str]:
    """The release's chat template and where it was found.

    Looked for as transformers and vLLM do: ``chat_template.jinja``, then ``chat_template`` of
    ``tokenizer_config.json`` (a string, or a list of named ones together with
    ``additional_chat_templates/``, where ``tool_use`` is taken for workloads with tools). Raises
    `NotEvaluated` when there is none.
    """
    named = _named_templates(release, configuration)
    wanted = "tool_use" if tools and "tool_use" in named else "default"
    if wanted in named:
        return named[wanted]
    raise NotEvaluated(
        f"{release} has no chat template (chat_template.jinja or chat_template in tokenizer_config.json)",
        "give the template that inference uses with --template",
    )


def _named_templates(release: Path, configuration: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    named: dict[str, tuple[str, str]] = {}
    configured = configuration.get("chat_template")
    if isinstance(configured, str):
        named["default"] = (configured, "tokenizer_config.json")
    elif isinstance(configured, list):
        for entry in configured:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = (
                    entry["template"],
                    f"tokenizer_config.json ({entry.get('name')})",
                )
    single = release / "chat_template.jinja"
    if single.is_file():
        named["default"] = (read_template(single), single.name)
    for path in sorted((release / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = (read_template(path), f"additional_chat_templates/{path.name}")
    return named


def read_template(path: Path) -> str:
    """The text of a template file of bounded size. Raises `BadInput`."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
        raise BadInput(f"the template {path} is no regular file")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(raw) > MAX_TEMPLATE_BYTES:
            raise BadInput(f"the template {path} is larger than {MAX_TEMPLATE_BYTES} bytes")
        return raw.decode("utf-8")
    except OSError as error:
        raise BadInput(f"cannot read the template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"the template {path} is not UTF-8 (byte {error.start})") from error


def render_whole(
    template: ChatTemplate, messages: list[Message], tools: list[Any] | None
) -> tuple[list[Message], str]:
    """The rendered conversation, and the messages in the form that the template takes.

    Templates differ in whether tool-call arguments are a mapping or JSON text: the mapping is tried first
    (what inference servers pass on), then the text. Raises `RenderError` with the first failure.
    """
    forms = argument_forms(messages)
    try:
        return forms[0], template.render(forms[0], tools)
    except (DateNeeded, RenderTimeout):
        raise
    except RenderError:
        if len(forms) == 1:
            raise
        try:
            return forms[1], template.render(forms[1], tools)
        except RenderError:
            pass
        raise


def argument_forms(messages: list[Message]) -> list[list[Message]]:
    """The messages with tool-call arguments as mappings, then as JSON text; once when there are no calls."""
    if not any(message.get("tool_calls") for message in messages):
        return [messages]
    return [[_with_arguments(message, form) for message in messages] for form in (_as_mapping, _as_text)]


def _with_arguments(message: Message, form: Callable[[Any], Any]) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call_with_arguments(call, form) for call in calls]}


def _call_with_arguments(call: Any, form: Callable[[Any], Any]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _call_with_arguments(call["function"], form)}
    return {**call, "arguments": form(call["arguments"])} if "arguments" in call else call


def _as_mapping(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
