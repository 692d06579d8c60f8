"""docs/templates.md: for which turns the copies of public chat templates decide what a model generates."""

from collections import Counter
from dataclasses import dataclass, field

from checks.check import silent
from checks.records.workload import Conversation
from checks.references.expected import ExpectedRow, Reference, Turn
from checks.references.spans import Stop
from tests.real_templates import CONVERSATIONS, SETTINGS, TEMPLATES, Setting

PAGE = "docs/templates.md"

EARLIER = {
    "trl/llama3.jinja": (17, 0, 1),
    "trl/llama3_1.jinja": (17, 0, 1),
    "trl/qwen2_5.jinja": (15, 0, 3),
    "trl/qwen3_instruct_2507.jinja": (15, 0, 3),
    "trl/gemma3.jinja": (14, 0, 2),
    "trl/phi3.jinja": (16, 0, 2),
    "trl/gptoss.jinja": (9, 4, 5),
    "trl/qwen3.jinja": (11, 0, 7),
    "trl/qwen3_5_think.jinja": (5, 0, 13),
    "trl/qwen3_6.jinja": (5, 0, 13),
    "trl/qwen3_6.jinja (preserve_thinking=true)": (7, 0, 11),
    "trl/glm4moe.jinja": (15, 0, 3),
    "sglang/glm-5.3-flash.jinja": (15, 0, 3),
    "llama.cpp/deepseek-ai-DeepSeek-V3.1.jinja": (16, 0, 2),
    "llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731.jinja": (16, 0, 2),
    "crit-core/deepseek-v4.jinja (thinking=true)": (11, 0, 7),
    "trl/deepseekv3.jinja": (0, 0, 16),
    "llama.cpp/deepseek-ai-DeepSeek-V3.2.jinja": (0, 0, 18),
    "trl/nemotron_3_nano.jinja": (5, 0, 13),
}
"""The first trial of the algorithm: (decided, stop only, undecided) of eighteen turns, step 5 weaker than
now.
"""

REASONS = {
    "the template renders this turn otherwise": "turn rendered otherwise in the history",
    "the template renders the history": "history rendered otherwise",
    "the rendered reply does not continue": "reply does not continue the prompt",
    "a token straddles": "a token straddles the prompt's edge",
    "the turn's own text holds": "control token in its text",
    "consecutive assistant": "consecutive replies",
    "the template writes text after": "text after the stop token",
    "references disagree": "references disagree",
}


@dataclass
class Counts:
    """What became of the turns of the ten conversations; consecutive replies count once."""

    stops: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    control: int = 0
    raised: int = 0
    confirmed: int = 0

    @property
    def decided(self) -> int:
        """Turns decided in full."""
        return sum(count for stop, count in self.stops.items() if stop != Stop.REPLACED)

    @property
    def undecided(self) -> int:
        """Turns that are not decided."""
        return sum(self.reasons.values())


def count(setting: Setting) -> Counts:
    """Run the references over the ten conversations."""
    tokenizer = setting.release_tokenizer()
    reference = Reference(setting.template(), tokenizer, setting.stop_tokens(tokenizer))
    chats = [Conversation(i, chat, tools) for i, (chat, tools) in enumerate(CONVERSATIONS.values())]
    counts = Counts()
    for row in reference.rows(chats, silent):
        _add(counts, row)
    return counts


def _add(counts: Counts, row: ExpectedRow) -> None:
    counts.raised += bool(row.problem)
    before: Turn | None = None
    for turn in row.turns:
        if turn.decided:
            counts.stops[turn.stop] += 1
            counts.confirmed += turn.confirmed
        elif not (before and before.message == turn.message - 1):  # the second of two consecutive replies
            reason = next(words for start, words in REASONS.items() if turn.reason.startswith(start))
            counts.reasons[reason] += 1
            counts.control += reason == REASONS["the turn's own text holds"]
        before = turn


def why(setting: Setting, counts: Counts) -> str:
    """How the counts relate to the earlier trial's: "equal", or why not."""
    earlier = EARLIER.get(setting.name)
    if earlier is None:
        return ""
    replaced = counts.stops[Stop.REPLACED]
    now = (counts.decided, replaced, counts.undecided)
    if now == earlier:
        return "equal"
    if setting.name == "trl/deepseekv3.jinja":
        return "the trial gave arguments as a mapping only, so its tool loop (2 turns) raised"
    short = earlier[0] - counts.decided
    if earlier[1] == replaced and 0 < short <= counts.control:
        raised = f"; {counts.raised} conversations raise, counted there" if counts.raised else ""
        return f"{short} fewer: their texts hold a control token (step 5 was weaker){raised}"
    return "DIFFERS"


def _line(setting: Setting, counts: Counts) -> str:
    stops = counts.stops
    reasons = ", ".join(f"{words} {number}" for words, number in counts.reasons.most_common())
    earlier = "/".join(map(str, EARLIER[setting.name])) if setting.name in EARLIER else ""
    tokenizer = "own" if setting.own else "Qwen3 + control tokens"
    cells = (
        f"`{setting.name}`",
        tokenizer,
        f"{counts.decided} ({stops[Stop.IN_TURN]}, {stops[Stop.NEXT_HEADER]}, {stops[Stop.NONE]})",
        str(counts.confirmed),
        str(stops[Stop.REPLACED]),
        f"{counts.undecided}" + (f": {reasons}" if reasons else ""),
        str(counts.raised),
        earlier,
        why(setting, counts),
    )
    return "| " + " | ".join(cells) + " |"


HEAD = """# What chat templates decide

Generated by `python -m tests.docs`; do not edit.

The data check asks a release's chat template which tokens of a conversation the model generates (the prefix
difference in token space, confirmed by sentinel texts). Some templates do not say: they drop reasoning from
the history, or their prompt ends in text that the history does not hold. Such turns are *undecided*, and
`labels` is inconclusive while one of them is to be supervised. A template for which nearly every turn is
undecided is not validated by this check: train each of its replies as the last turn of a row of its own.

A reply whose own text holds a control token is undecided: rendered, that text is no text any more. Think
tags are the exception, because a model writes them itself and data sets keep them in a reply's content: such
a turn is decided where both references place it.

Ten conversations with eighteen turns: single, several turns, reasoning in one turn and in each, a tool loop,
white space at the edges, an empty reply, control tokens in the texts, consecutive replies (one turn), and
think tags in the content. The templates are copies that third parties publish. Where a release's own
tokenizer is not at hand, Qwen3's with the template's control tokens added stands in for it; whether a token
straddles the prompt's edge depends on the vocabulary.

* decided: all, and of these with the stop token in the turn, as the next header, nowhere
* confirmed: decided turns that the second reference places too
* stop replaced: body decided; the template writes another token in place of the stop token in the history
* raises: conversations that the template refuses
* trial: decided / stop only / undecided in the first trial of the algorithm, and how this table relates to it

| template | tokenizer | decided | confirmed | stop replaced | undecided | raises | trial | compared with it |
|---|---|---|---|---|---|---|---|---|
"""


def build() -> dict[str, str]:
    """The page; empty where the real data is absent."""
    if not TEMPLATES.is_dir():
        return {}
    lines = [_line(setting, count(setting)) for setting in SETTINGS]
    return {PAGE: HEAD + "\n".join(lines) + "\n"}
