"""The embedded workload: conversations from a seed, with every kind of turn that a template renders.

The text is about small sums, stock lists, weather reports and notes, so that it needs no download and no
licence. Only `random.Random.random` is used: its sequence is the one that Python guarantees to keep.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

Message = dict[str, Any]
Conversation = dict[str, Any]
T = TypeVar("T")

WORKLOAD_ROWS = 240
"""Conversations in the embedded workload: a few hundred, so that each kind comes thirty times."""

_PEOPLE = (
    "Amina",
    "Björn",
    "Chiara",
    "Dmitri",
    "Eva",
    "Farid",
    "Grace",
    "Håkon",
    "Ines",
    "José",
    "小林",
    "Łucja",
)
_THINGS = (
    "apples",
    "bolts",
    "candles",
    "daisies",
    "envelopes",
    "figs",
    "gaskets",
    "hinges",
    "ink wells",
    "jars",
)
_PLACES = (
    "Zürich",
    "São Paulo",
    "Oslo",
    "Kraków",
    "大阪",
    "Nairobi",
    "Québec",
    "Θεσσαλονίκη",
    "Lima",
    "Pune",
)
_SKIES = ("clear", "overcast", "light rain", "heavy snow", "fog", "thunder ⛈️")
_SYSTEMS = (
    "You are a careful clerk. Answer in one short sentence.",
    "Check every sum twice before you answer.\nNever guess a number that a function can tell you.",
    "You help in a hardware shop. Be friendly – but brief.",
)
_NOTES = (
    "The lower shelf is reserved for deliveries that arrive before noon.",
    "A receipt without a date is put aside and asked for again.",
    "Prices are written without tax; the tax is added at the end of the week.",
    "Whoever closes the shop writes down the count of the till.",
    "Broken goods go into the blue crate (not the grey one!).",
    "On Fridays the baker's van blocks the side door until 10:30.",
    "Le café est livré le mardi, sauf pendant les vacances.",
    "注文は前日の午後五時までに入れてください。",
    "Der Schlüssel hängt – wie immer – hinter der Tür.",
)

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "stock_count",
            "description": "How many pieces of an article are on the shelf.",
            "parameters": {
                "type": "object",
                "properties": {"article": {"type": "string"}},
                "required": ["article"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "weather_report",
            "description": "The sky and the temperature in a city, in °C.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
)


class _Dice:
    """Choices from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a reproducible workload, no secret

    def number(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[self.number(0, len(choices) - 1)]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    return message | {"reasoning_content": reasoning} if reasoning else message


def _calls(calls: list[tuple[str, dict[str, Any]]], first_id: int, reasoning: str = "") -> Message:
    made = [
        {
            "id": f"call_{first_id + index}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for index, (name, arguments) in enumerate(calls)
    ]
    return _assistant("", reasoning) | {"tool_calls": made}


def _result(name: str, call_id: int, value: dict[str, Any]) -> Message:
    content = json.dumps(value, ensure_ascii=False)
    return {"role": "tool", "name": name, "tool_call_id": f"call_{call_id}", "content": content}


def _sum(dice: _Dice) -> tuple[str, str, str]:
    """A question, the reasoning and the answer of a small sum."""
    who, thing = dice.pick(_PEOPLE), dice.pick(_THINGS)
    have, more = dice.number(2, 950), dice.number(2, 1200)
    question = f"{who} has {have} {thing} and buys {more} more. How many {thing} are there now?"
    return (
        question,
        f"{have} + {more} = {have + more}. So {who} has {have + more}.",
        f"{have + more} {thing}.",
    )


def _plain(dice: _Dice) -> list[Message]:
    question, _, answer = _sum(dice)
    return [_user(question), _assistant(answer)]


def _reasoned(dice: _Dice) -> list[Message]:
    question, reasoning, answer = _sum(dice)
    return [_user(question), _assistant(answer, reasoning)]


def _many_turns(dice: _Dice) -> list[Message]:
    turns: list[Message] = []
    for index in range(dice.number(2, 5)):
        question, reasoning, answer = _sum(dice)
        turns += [_user(question), _assistant(answer, reasoning if index % 2 else "")]
    return turns


def _one_call(dice: _Dice) -> list[Message]:
    thing, count, call_id = dice.pick(_THINGS), dice.number(0, 400), dice.number(100, 999)
    return [
        _user(f"Do we still have {thing}?"),
        _calls([("stock_count", {"article": thing})], call_id, f"I have to look up {thing}."),
        _result("stock_count", call_id, {"article": thing, "count": count}),
        _assistant(f"Yes, {count} {thing}." if count else f"No, {thing} are sold out."),
    ]


def _two_calls_at_once(dice: _Dice) -> list[Message]:
    """Two calls in one turn, then two consecutive results."""
    cities, call_id = (dice.pick(_PLACES), dice.pick(_PLACES)), dice.number(100, 999)
    skies, degrees = (dice.pick(_SKIES), dice.pick(_SKIES)), (dice.number(-20, 39), dice.number(-20, 39))
    results = [
        _result("weather_report", call_id + i, {"city": cities[i], "sky": skies[i], "celsius": degrees[i]})
        for i in range(2)
    ]
    return [
        _user(f"Where is it warmer today, in {cities[0]} or in {cities[1]}?"),
        _calls([("weather_report", {"city": city, "days": 1}) for city in cities], call_id),
        *results,
        _assistant(
            f"{cities[0]}: {skies[0]}, {degrees[0]} °C; {cities[1]}: {skies[1]}, {degrees[1]} °C.",
            f"{degrees[0]} against {degrees[1]}.",
        ),
    ]


def _call_after_call(dice: _Dice) -> list[Message]:
    """A loop of calls with reasoning before each, then a second question."""
    call_id, things = dice.number(100, 999), [dice.pick(_THINGS) for _ in range(dice.number(2, 3))]
    turns = [_user("Which of these should we order: " + ", ".join(things) + "?")]
    for index, thing in enumerate(things):
        reasoning = f"Article {index + 1} of {len(things)}: {thing}."
        turns.append(_calls([("stock_count", {"article": thing})], call_id + index, reasoning))
        turns.append(_result("stock_count", call_id + index, {"article": thing, "count": dice.number(0, 9)}))
    turns.append(_assistant(f"Order {things[-1]}.", f"The last count was the lowest of {len(things)}."))
    return [*turns, _user("Thank you! 🙏"), _assistant("You're welcome.")]


def _long_note(dice: _Dice) -> list[Message]:
    count = dice.number(20, 60)
    note = "\n".join(f"{index + 1}. {dice.pick(_NOTES)}" for index in range(count))
    wanted = dice.number(1, count)
    line = note.split("\n")[wanted - 1].split(". ", 1)[1]
    return [_user(f"{note}\n\nWhat does rule {wanted} say?"), _assistant(line, f"I count to {wanted}.")]


def _odd_spacing(dice: _Dice) -> list[Message]:
    """Leading, trailing and doubled white space, and characters of one to four bytes."""
    who, place = dice.pick(_PEOPLE), dice.pick(_PLACES)
    table = f"| name | place |\n|------|-------|\n|  {who}  |\t{place} |\n"
    return [
        _user(f"  Make a table:\n\n{who} ,{place}\n"),
        _assistant(f"\n{table}\n\n", "  two columns\n"),
        _user("naïve façade – 🧵🪡 ½ × Ⅳ …?"),
        _assistant("Ça va: ½ × 4 = 2 ✅  "),
    ]


_KINDS: tuple[Callable[[_Dice], list[Message]], ...] = (
    _plain,
    _reasoned,
    _many_turns,
    _one_call,
    _two_calls_at_once,
    _call_after_call,
    _long_note,
    _odd_spacing,
)
_KINDS_WITH_TOOLS = {_one_call, _two_calls_at_once, _call_after_call}


def conversations(rows: int = WORKLOAD_ROWS, seed: int = 0) -> Iterator[Conversation]:
    """The first ``rows`` conversations of a seed: ``{"messages": [...]}``, some with ``"tools"``.

    Kinds take turns; about two of three rows begin with a system turn.
    """
    dice = _Dice(seed)
    for index in range(rows):
        kind = _KINDS[index % len(_KINDS)]
        system = [{"role": "system", "content": dice.pick(_SYSTEMS)}] if dice.number(0, 2) else []
        conversation: Conversation = {"messages": [*system, *kind(dice)]}
        yield conversation | {"tools": list(TOOLS)} if kind in _KINDS_WITH_TOOLS else conversation


def write_workload(path: Path, rows: int = WORKLOAD_ROWS, seed: int = 0) -> int:
    """Write the workload as JSON lines and return the number of rows."""
    lines = [json.dumps(conversation, ensure_ascii=False) for conversation in conversations(rows, seed)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)
