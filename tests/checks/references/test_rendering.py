"""Own rendering: bit for bit what transformers renders, within limits, from wherever a release keeps it."""

import copy
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from checks.errors import BadInput, NotEvaluated
from checks.references.rendering import (
    ChatTemplate,
    DateNeeded,
    RenderError,
    RenderTimeout,
    limits,
    read_template,
    render_whole,
    template_source,
)
from tests.real_templates import CONVERSATIONS, DATE, TEMPLATES
from tests.shared_data import needs_shared

CHAT = [{"role": "user", "content": "Grüße <b>"}, {"role": "assistant", "content": "ok"}]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return DATE


def theirs(source: str, chat: list[dict[str, Any]], tools: list[Any] | None, prompt: bool) -> str | None:
    """What transformers renders; None where the template raises there."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            conversations=[chat], tools=tools, chat_template=source, add_generation_prompt=prompt, **VARIABLES
        )
    except Exception:  # noqa: BLE001 - whatever a template raises there
        return None
    return str(rendered[0])


def ours(
    template: ChatTemplate, chat: list[dict[str, Any]], tools: list[Any] | None, prompt: bool
) -> str | None:
    try:
        return template.render(chat, tools, prompt)
    except RenderError:
        return None


@needs_shared
def test_every_template_renders_every_chat_as_transformers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "datetime", FixedClock)
    files = sorted(TEMPLATES.rglob("*.jinja"))
    rendered = refused = 0
    for path in files:
        template = ChatTemplate(path.read_text("utf-8"), path.name, VARIABLES, DATE)
        for name, (chat, tools) in CONVERSATIONS.items():
            for length in range(1, len(chat) + 1):
                for prompt in (False, True):
                    before = copy.deepcopy(chat)
                    got = ours(template, chat[:length], tools, prompt)
                    assert got == theirs(template.source, chat[:length], tools, prompt), (
                        path.name,
                        name,
                        length,
                    )
                    assert chat == before
                    rendered, refused = rendered + (got is not None), refused + (got is None)
    assert len(files) > 50
    assert rendered > 3000
    assert refused < rendered / 10


def test_generation_markers_render_as_if_they_were_not_there() -> None:
    block = "{%- generation %}\n{{ m.content }}{% set x = 1 %}{%- endgeneration %}"
    marked = "{% for m in messages %}\n  " + block + "{{ x }}\n{% endfor %}"
    template = ChatTemplate(marked, "t", {})
    assert template.render(CHAT) == theirs(marked, CHAT, None, False) == "Grüße <b>\nok\n"


@pytest.mark.parametrize(
    "expression",
    [
        "m.role",
        "m.missing is defined",
        "m.missing.further",
        "m.items() | list",
        "m.get('role')",
        "m.update({'role': 'x'})",
        "m.__class__",
        "m.keys.__self__",
        "m.role.upper()",
        "m.role.missing is defined",
        "m.role.__class__",
        "m.role.format",
        "'{0.__class__}'.format(m)",
        "messages.append(1)",
        "m['role'].strip().startswith('u')",
        "m.copy() is mapping",
    ],
)
def test_attributes_are_read_as_the_sandbox_of_jinja_reads_them(expression: str) -> None:
    def sandboxed() -> str:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(source).render(messages=[dict(CHAT[0])])

    source = "{% set m = messages[0] %}{{ " + expression + " }}"
    texts = []
    for render in (sandboxed, lambda: ChatTemplate(source, "t", {}).render([dict(CHAT[0])])):
        try:
            texts.append(render().partition(" at 0x")[0])  # a function's text ends with its address
        except (TemplateError, RenderError):
            texts.append("raises")
    assert texts[0] == texts[1]


def test_json_is_written_as_templates_expect_it() -> None:
    source = "{{ messages[0] | tojson }}{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}"
    template = ChatTemplate(source, "t", {})
    assert template.render(CHAT) == '{"role": "user", "content": "Grüße <b>"}{\n "a": 2,\n "b": 1\n}'


def test_today_is_the_date_given() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert ChatTemplate(source, "t", {}, datetime.fromisoformat("2026-01-31")).render(CHAT) == "31 Jan 2026"
    with pytest.raises(DateNeeded):
        ChatTemplate(source, "t", {}).render(CHAT)


CALL = [
    {"role": "user", "content": "?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% set c = messages[1].tool_calls[0] %}{{ c.function.arguments.items()|list|first|join }}",
            "a1",
        ),
        ("{{ 'call ' + messages[1].tool_calls[0].function.arguments }}", 'call {"a": 1}'),
    ],
)
@pytest.mark.parametrize("given", ['{"a": 1}', {"a": 1}])
def test_arguments_are_given_as_the_template_takes_them(source: str, text: str, given: Any) -> None:
    chat = copy.deepcopy(CALL)
    chat[1]["tool_calls"][0]["function"]["arguments"] = given  # type: ignore[index]
    messages, rendered = render_whole(ChatTemplate(source, "t", {}), chat, None)
    assert rendered == text
    assert ChatTemplate(source, "t", {}).render(messages) == text


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_an_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.references.rendering.RENDER_SECONDS", 0.1)
    started = time.monotonic()
    with limits(), pytest.raises(RenderTimeout):
        ChatTemplate(ENDLESS, "t", {}).render(CHAT)
    assert time.monotonic() - started < 2
    assert ChatTemplate("{{ 1 }}", "t", {}).render(CHAT) == "1"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 9999999999 }}",
        "{{ 'x'.center(9999999999) }}",
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    ],
)
def test_a_greedy_template_gets_no_more_memory(source: str) -> None:
    with limits(), pytest.raises(RenderError, match="memory"):
        ChatTemplate(source, "t", {}).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ (9**99999999) % 7 }}",
        "{{ (3**9000000)|string }}",
        "{{ ('f' * 9000000)|int(base=16) // ('f' * 4500000)|int(base=16) }}",
        "{{ ('f' * 9000000)|int(base=16) % ('f' * 4500000)|int(base=16) }}",
        "{{ ('f' * 9000000)|int(base=16) * ('f' * 4500000)|int(base=16) }}",
    ],
)
def test_arithmetic_that_takes_hours_is_refused(source: str) -> None:
    started = time.monotonic()
    with limits(), pytest.raises(RenderError, match="may not compute with numbers of"):
        ChatTemplate(source, "t", {}).render(CHAT)
    assert time.monotonic() - started < 2
    assert ChatTemplate("{{ 2**10 * 3 // 2 % 1000 }}|{{ '%d' % 7 }}", "t", {}).render(CHAT) == "536|7"


def test_nothing_of_a_template_is_evaluated_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.references.rendering.RENDER_SECONDS", 0.2)
    source = "{{ ('a' * 70000000)|wordwrap(1)|length }}{{ 'x'.center(9999999999) }}"
    started = time.monotonic()
    template = ChatTemplate(source, "t", {})
    assert time.monotonic() - started < 1
    with limits(), pytest.raises(RenderTimeout):
        template.render(CHAT)
    assert time.monotonic() - started < 5


def test_a_number_too_long_to_read_is_a_template_that_does_not_compile() -> None:
    with pytest.raises(NotEvaluated, match="does not compile"):
        ChatTemplate("{{ " + "9" * 5000 + " }}", "t", {})


def test_an_endless_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.references.rendering.MAX_RENDERED_CHARACTERS", 10)
    with pytest.raises(RenderError, match="wrote 11 characters"):
        ChatTemplate("{{ 'x' * 11 }}", "t", {}).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% include '/etc/passwd' %}",
        "{{ undefined_function() }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    ],
)
def test_a_hostile_template_is_an_error_and_changes_nothing(source: str) -> None:
    chat = copy.deepcopy(CHAT)
    try:
        text = ChatTemplate(source, "t", {}).render(chat)
    except RenderError:
        text = ""
    assert "module" not in text
    assert chat == CHAT


def test_limits_hold_only_where_a_template_can_be_stopped() -> None:
    seen: list[str] = []

    def elsewhere() -> None:
        try:
            with limits():
                seen.append("entered")
        except NotEvaluated as error:
            seen.append(error.message)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in seen[0]


def test_the_template_is_found_where_releases_keep_it(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    assert template_source(tmp_path, {"chat_template": "C"}) == ("C", "tokenizer_config.json")
    assert template_source(tmp_path, {"chat_template": named})[0] == "D"
    assert template_source(tmp_path, {"chat_template": named}, tools=True)[0] == "T"
    (tmp_path / "chat_template.jinja").write_text("J", "utf-8")
    assert template_source(tmp_path, {"chat_template": "C"}) == ("J", "chat_template.jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("U", "utf-8")
    assert template_source(tmp_path, {}, tools=True)[0] == "U"
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(NotEvaluated, match="no chat template"):
        template_source(tmp_path, {})


def test_a_template_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read_template(tmp_path / "absent")
    (tmp_path / "latin").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="no regular file"):
        read_template(tmp_path / "pipe")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_template(tmp_path / "latin")
    (tmp_path / "huge").write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(BadInput, match="larger than"):
        read_template(tmp_path / "huge")
