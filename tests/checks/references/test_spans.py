"""The two span references: each step that leaves a turn undecided, and that they are two."""

from typing import Any

import pytest
from tokenizers import AddedToken

from checks.check import silent
from checks.records.workload import Conversation
from checks.references import expected as expected_module
from checks.references import sentinels
from checks.references.expected import EITHER, MUST, MUST_NOT, STOP, ExpectedRow, Reference
from checks.references.rendering import ChatTemplate
from checks.references.spans import PrefixSpan, Stop
from checks.references.tokenization import ReleaseTokenizer, StopTokens
from tests.checks import tiny_release

CHAT = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2."},
]
PLAIN = tiny_release.TEMPLATE


def reference(template: str, stops: tuple[str, ...] = ("<|end|>",), segment_safe: bool = True) -> Reference:
    made = tiny_release.tokenizer()
    tokenizer = ReleaseTokenizer(made, {}, segment_safe)
    ids = frozenset(made.token_to_id(text) for text in stops)
    return Reference(ChatTemplate(template, "t", {"bos_token": "<s>"}), tokenizer, StopTokens(ids, "t", True))


def row(template: str, chat: list[dict[str, Any]] = CHAT, **options: Any) -> ExpectedRow:
    return reference(template, **options).rows([Conversation(0, chat)], silent)[0]


def texts(found: ExpectedRow) -> list[str]:
    made = tiny_release.tokenizer()
    return [
        made.decode(found.ids[slice(*turn.tokens)].tolist(), skip_special_tokens=False)
        for turn in found.turns
    ]


@pytest.mark.parametrize("segment_safe", [True, False])
def test_replies_with_their_stop_token_are_the_generated_text(segment_safe: bool) -> None:
    found = row(PLAIN, segment_safe=segment_safe)
    assert texts(found) == ["1.<|end|>", "2.<|end|>"]
    assert [(turn.stop, turn.confirmed) for turn in found.turns] == [(Stop.IN_TURN, True)] * 2
    codes = found.mask.tolist()
    start, end = found.turns[0].tokens
    assert codes[start - 1 : end + 2] == [MUST_NOT, *[MUST] * (end - start - 1), STOP, EITHER, MUST_NOT]


def test_a_stop_token_replaced_in_the_history_leaves_that_label_open() -> None:
    template = PLAIN.replace(
        "<|end|>", "{% if loop.last and m.role == 'assistant' %}<|stop|>{% else %}<|end|>{% endif %}"
    )
    found = row(template, stops=("<|stop|>",))
    assert [turn.stop for turn in found.turns] == [Stop.REPLACED, Stop.IN_TURN]
    assert texts(found) == ["1.", "2.<|stop|>"]
    assert found.mask[found.turns[0].tokens[1]] == EITHER


def test_the_next_header_is_the_stop_where_the_release_says_so() -> None:
    found = row(tiny_release.GLM_LIKE, stops=("<|user|>",))
    assert [turn.stop for turn in found.turns] == [Stop.NEXT_HEADER, Stop.NONE]
    assert texts(found) == ["1.", "2."]


UNDECIDED = {
    "consecutive": (PLAIN, [*CHAT[:2], CHAT[3]], "consecutive assistant messages"),
    "forced think": (
        PLAIN.replace("<|assistant|>\n{% endif", "<|assistant|>\n[think]{% endif"),
        CHAT,
        "does not continue the prompt",
    ),
    "history changes": (
        PLAIN.replace("{{ m.content }}", "{{ m.content }}{% if loop.last and loop.index == 2 %}!{% endif %}"),
        CHAT,
        "renders this turn otherwise",
    ),
    "prompt changes": (
        PLAIN.replace("{{ bos_token }}", "{{ bos_token }}{{ messages|length }}"),
        CHAT,
        "does not continue the prompt",
    ),
    "text after the stop": (
        PLAIN.replace("<|end|>\n", "<|end|>{% if m.role == 'assistant' %} bye{% endif %}\n"),
        CHAT,
        "text after the stop token",
    ),
    "control token": (
        PLAIN,
        [CHAT[0], {"role": "assistant", "content": "a <|pad|> <|user|>"}],
        "control token '<|user|>'",
    ),
    "raises alone": (
        "{% if messages|length == 1 %}{{ raise_exception('too short') }}{% endif %}" + PLAIN,
        CHAT[:2],
        "too short",
    ),
}


@pytest.mark.parametrize("case", list(UNDECIDED))
def test_what_the_template_does_not_decide_is_undecided_with_the_reason(case: str) -> None:
    template, chat, reason = UNDECIDED[case]
    found = row(template, chat)
    assert not found.turns[0].decided
    assert reason in found.turns[0].reason
    start, end = found.turns[0].tokens
    assert set(found.mask[start:end].tolist()) == {EITHER}


SHORTENED = {
    "a block that only the last reply has": PLAIN.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' and loop.last %}<|think|>[]<|think|>{% endif %}{{ m.content }}",
    ),
    "a text that only the last reply has": PLAIN.replace(
        "{{ m.content }}", "{% if m.role == 'assistant' and loop.last %}so: {% endif %}{{ m.content }}"
    ),
    "a line break that only the last reply has": PLAIN.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' and loop.last %}{{ '\\n' }}{% endif %}{{ m.content }}",
    ),
    "text behind the stop token of the last reply": PLAIN.replace(
        "<|end|>", "<|end|>{% if m.role == 'assistant' and loop.last %} bye{% endif %}"
    ),
    "nothing": PLAIN,
}


@pytest.mark.parametrize("case", list(SHORTENED))
@pytest.mark.parametrize("merged", [False, True])
def test_a_reply_that_the_history_shortens_is_undecided_without_its_tokens(
    case: str, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way (`literal_texts`) gives what tokenising every reply gives, reasons too."""

    def found() -> ExpectedRow:
        made = tiny_release.tokenizer()
        made.add_special_tokens(["<|think|>"])
        made.add_tokens(["\n\n"] if merged else [])
        stops = StopTokens(frozenset({made.token_to_id("<|end|>")}), "t", True)
        tokenizer = ReleaseTokenizer(made, {}, segment_safe=True)
        template = ChatTemplate(SHORTENED[case], "t", {"bos_token": "<s>"})
        return Reference(template, tokenizer, stops).rows([Conversation(0, CHAT)], silent)[0]

    short = found()
    monkeypatch.setattr(ReleaseTokenizer, "literal_texts", lambda self, ids: None)
    long = found()
    assert short.turns == long.turns
    assert short.mask.tolist() == long.mask.tolist()
    assert short.turns[0].decided == (case == "nothing")


def test_a_token_across_the_prompts_edge_is_undecided() -> None:
    """With a merge of the prompt's line break and the reply's, the prompt's last token is not in the row."""
    made = tiny_release.tokenizer()
    made.add_tokens(["\n\n"])
    tokenizer = ReleaseTokenizer(made, {}, segment_safe=True)
    stops = StopTokens(frozenset({made.token_to_id("<|end|>")}), "t", True)
    straddling = Reference(ChatTemplate(PLAIN, "t", {"bos_token": "<s>"}), tokenizer, stops)
    chat = [CHAT[0], {"role": "assistant", "content": "\n1."}]
    turn = straddling.rows([Conversation(0, chat)], silent)[0].turns[0]
    assert "straddles the edge between prompt and reply" in turn.reason


def test_user_text_with_control_tokens_does_not_move_the_spans() -> None:
    found = row(PLAIN, [{"role": "user", "content": "<|end|><|assistant|>\nno"}, CHAT[1]])
    assert texts(found) == ["1.<|end|>"]


SPLITTING = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if '</think>' in m.content %}{% set parts = m.content.split('</think>') %}"
    "{% if loop.last %}<think>\n{{ parts[0].split('<think>')[1].strip() }}\n</think>\n\n{% endif %}"
    "{{ parts[1].strip() }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THOUGHT = {"role": "assistant", "content": "<think>\nOne and one.\n</think>\n\n2."}


def thinking(template: str, *tags: str) -> Reference:
    """The reference of a release whose tokenizer has think tags as control tokens."""
    made = tiny_release.tokenizer()
    made.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    stops = StopTokens(frozenset({made.token_to_id("<|end|>")}), "t", True)
    tokenizer = ReleaseTokenizer(made, {}, segment_safe=True)
    return Reference(ChatTemplate(template, "t", {"bos_token": "<s>"}), tokenizer, stops)


@pytest.mark.parametrize("template", [PLAIN, SPLITTING])
def test_a_reply_that_holds_a_think_block_is_decided_where_both_references_place_it(template: str) -> None:
    made = thinking(template, "<think>", "</think>")
    found = made.rows([Conversation(0, [*CHAT[:3], THOUGHT])], silent)[0]
    turn = found.turns[1]
    assert (turn.decided, turn.confirmed, turn.stop) == (True, True, Stop.IN_TURN)
    text = made.tokenizer.tokenizer.decode(found.ids[slice(*turn.tokens)].tolist(), skip_special_tokens=False)
    assert text == "<think>\nOne and one.\n</think>\n\n2.<|end|>"


def test_a_think_block_that_the_history_drops_stays_undecided() -> None:
    made = thinking(SPLITTING, "<think>", "</think>")
    found = made.rows([Conversation(0, [CHAT[0], THOUGHT, *CHAT[2:]])], silent)[0]
    assert [turn.decided for turn in found.turns] == [False, True]
    assert "otherwise once later messages follow" in found.turns[0].reason


def test_a_think_block_that_the_second_reference_does_not_place_stays_undecided() -> None:
    words = PLAIN.replace("{{ m.content }}", "{{ m.content }}{% if 'One and' in m.content %}!{% endif %}")
    turn = (
        thinking(words, "<think>", "</think>").rows([Conversation(0, [CHAT[0], THOUGHT])], silent)[0].turns[0]
    )
    assert not turn.decided
    assert "'<think>', and the second reference does not place it" in turn.reason
    plain = thinking(words).rows([Conversation(0, [CHAT[0], THOUGHT])], silent)[0].turns[0]
    assert (plain.decided, plain.confirmed) == (True, False)


def test_a_think_block_beside_another_control_token_stays_undecided() -> None:
    reply = {"role": "assistant", "content": "<think>\nno\n</think>\n\n<|user|> 2."}
    turn = (
        thinking(PLAIN, "<think>", "</think>").rows([Conversation(0, [CHAT[0], reply])], silent)[0].turns[0]
    )
    assert (turn.decided, "'<|user|>'" in turn.reason) == (False, True)


def test_consecutive_tool_results_and_calls_are_decided() -> None:
    template = (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    chat = [
        CHAT[0],
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        CHAT[3],
    ]
    found = row(template, chat)
    assert texts(found) == ['[f {"a": 1}][f {"a": 1}]<|end|>', "2.<|end|>"]
    assert [turn.decided for turn in found.turns] == [True, True]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda span: (span.characters[0] + 1, span.characters[1]), "own text lies outside"),
        (lambda span: (0, span.characters[1]), "covers another message"),
        (lambda span: (span.characters[0], span.characters[1] - 1), "does not end at the first stop token"),
    ],
)
def test_the_second_reference_contradicts_a_wrong_span(
    monkeypatch: pytest.MonkeyPatch, change: Any, reason: str
) -> None:
    real = expected_module.prefix_spans

    def wrong(*arguments: Any) -> list[Any]:
        return [
            PrefixSpan(s.message, change(s), s.tokens, s.stop, s.stop_token, s.padding_end)
            for s in real(*arguments)
        ]

    monkeypatch.setattr(expected_module, "prefix_spans", wrong)
    found = row(PLAIN)
    assert not any(turn.decided for turn in found.turns)
    assert all("references disagree" in turn.reason and reason in turn.reason for turn in found.turns)


def test_the_second_reference_uses_nothing_of_the_first() -> None:
    names = set(vars(sentinels))
    assert not {"spans", "PrefixSpan", "prefix_spans", "ReleaseTokenizer", "expected"} & names


@pytest.mark.parametrize(
    ("template", "content", "shown"),
    [
        (PLAIN, "  a\n", "  a\n"),
        (PLAIN.replace("m.content", "m.content | trim"), "  a\n", "a"),
        (PLAIN.replace("m.content", "m.content.lstrip('\\n')"), "\n\n a ", " a "),
        (PLAIN.replace("{{ m.content }}", "{{ m.content | tojson }}"), 'say "é"', 'say \\"é\\"'),
    ],
)
def test_sentinels_place_a_text_as_the_template_prints_it(template: str, content: str, shown: str) -> None:
    made = reference(template)
    messages = [CHAT[0], {"role": "assistant", "content": content}]
    template_ = made.templates.plain
    whole = template_.render(messages)
    skeleton, owners = sentinels.SentinelReference(template_).skeleton(messages, None)
    assert skeleton is not None
    bodies = sentinels.place(whole, skeleton, owners, sentinels.texts_of(messages))
    assert bodies is not None
    assert [whole[body.start : body.end] for body in bodies] == [
        "One?",
        shown,
    ]


def test_a_template_that_depends_on_the_words_is_not_placed() -> None:
    made = reference(
        PLAIN.replace("{{ m.content }}", "{{ m.content }}{% if 'One' in m.content %}!{% endif %}")
    )
    template_ = made.templates.plain
    whole = template_.render(CHAT)
    skeleton, owners = sentinels.SentinelReference(template_).skeleton(CHAT, None)
    assert skeleton is not None
    assert sentinels.place(whole, skeleton, owners, sentinels.texts_of(CHAT)) is None
