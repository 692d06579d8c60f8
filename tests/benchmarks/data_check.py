"""The data check beside one ``apply_chat_template(tokenize=True)`` for each row: same release, same rows.

Ours renders each row with its prompts and its sentinels, tokenises, decides both span references and
compares ids and labels; reading files is on neither side.
"""

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from checks.check import silent
from checks.conversations.alignment import Terms
from checks.conversations.cutting import cut_documents
from checks.conversations.parts import judge_rows
from checks.conversations.rows_case import Recipe, Rows
from checks.records.rows import IGNORED, Sequence
from checks.records.workload import Conversation
from checks.references.expected import MUST, STOP, Reference
from tests.benchmarks import Absent, Pair, benchmark
from tests.real_templates import SETTINGS, WORKLOADS, tokenizer_json

_NAMES = {
    "gpt-oss": "trl/gptoss.jinja",
    "qwen3": "trl/qwen3.jinja",
    "deepseek-v4": "crit-core/deepseek-v4.jinja",
}
_SINGLE_TURN = 2.5
"""The bound for rows of one turn; a chat of n replies may take n + 1 times."""


@dataclass(frozen=True)
class _Sides:
    name: str
    chats: list[list[dict[str, str]]]

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        reference = self._reference()
        rows = [Conversation(number, chat) for number, chat in enumerate(self.chats)]
        sequences = self._dump(reference, rows)
        tokenizer = self._their_tokenizer()
        before = os.environ.get("TOKENIZERS_PARALLELISM")
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core on either side
        try:
            yield Pair(
                lambda: _check(self._reference(reference), rows, sequences),
                lambda: [tokenizer.apply_chat_template(chat, tokenize=True) for chat in self.chats],
            )
        finally:
            os.environ.pop("TOKENIZERS_PARALLELISM")
            if before is not None:
                os.environ["TOKENIZERS_PARALLELISM"] = before

    def _reference(self, like: Reference | None = None) -> Reference:
        """A reference that has kept nothing yet (the tokenizer's files are read once)."""
        setting = next(setting for setting in SETTINGS if setting.name == _NAMES[self.name])
        tokenizer = like.tokenizer if like else setting.release_tokenizer()
        return Reference(setting.template(), tokenizer, setting.stop_tokens(tokenizer))

    def _dump(self, reference: Reference, rows: list[Conversation]) -> tuple[Sequence, ...]:
        expected = reference.rows(rows, silent)
        return tuple(
            Sequence(
                row.index,
                row.ids,
                np.where(np.isin(row.mask, (MUST, STOP)), row.ids, IGNORED).astype(np.int32),
            )
            for row in expected
        )

    def _their_tokenizer(self) -> Any:
        from transformers import PreTrainedTokenizerFast

        setting = next(setting for setting in SETTINGS if setting.name == _NAMES[self.name])
        special = {key: value for key, value in setting.variables().items() if key.endswith("_token")}
        loaded = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_json(self.name)), **special)
        loaded.chat_template = setting.source()
        return loaded


def _check(reference: Reference, rows: list[Conversation], sequences: tuple[Sequence, ...]) -> None:
    expected = tuple(reference.rows(rows, silent))
    recipe = Recipe(terms=Terms(stops=reference.stops.ids), stops_named=True)
    documents = cut_documents(sequences, list(expected), packed=False, terms=recipe.terms)
    parts = judge_rows(Rows(documents, expected, recipe, reference.tokenizer), silent)
    if any(part.problem_count for part in parts if part.outcome == "fail"):
        raise RuntimeError("the benchmark's rows are not clean")


def _single_turns() -> list[list[dict[str, str]]]:
    with _open("gsm8k_train.jsonl") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 1500)]
    return [
        [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
        for row in rows
    ]


def _chats(turns: int) -> list[list[dict[str, str]]]:
    with _open("fastchat_dummy_conversation.json") as file:
        rows = json.load(file)
    roles = {"human": "user", "gpt": "assistant"}
    made = [[{"role": roles[m["from"]], "content": m["value"]} for m in row["conversations"]] for row in rows]
    return [chat for chat in made if len(chat) == 2 * turns]


@contextmanager
def _open(name: str) -> Iterator[Any]:
    path = WORKLOADS / name
    if not path.is_file():
        raise Absent(f"{path} is not here")
    with path.open(encoding="utf-8") as file:
        yield file


def _register(name: str) -> None:
    @benchmark(f"data check, single turn, {name}", target=_SINGLE_TURN, peer="apply_chat_template", rounds=3)
    @contextmanager
    def single() -> Iterator[Pair]:
        with _Sides(name, _single_turns()).pair() as pair:
            yield pair

    for turns in (2, 3):
        _register_chats(name, turns)


def _register_chats(name: str, turns: int) -> None:
    @benchmark(
        f"data check, chats of {turns} replies, {name}",
        target=turns + 1,
        peer="apply_chat_template",
        rounds=3,
    )
    @contextmanager
    def chats() -> Iterator[Pair]:
        with _Sides(name, _chats(turns)).pair() as pair:
            yield pair


for _name in _NAMES:
    _register(_name)
