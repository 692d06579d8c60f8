"""gpt-oss: ids and spans of the reference equal openai-harmony's, which renders without a template."""

import base64
import hashlib
import json
from typing import Any

import pytest

from checks.check import silent
from checks.records.workload import Conversation
from checks.references.expected import ExpectedRow, Reference
from checks.references.spans import Stop
from tests.checks.test_data_real import chats
from tests.real_templates import DATE, SETTINGS, tokenizer_json
from tests.shared_data import needs_shared

pytestmark = needs_shared

RANKS_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""The published digest of o200k_base.tiktoken."""


def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(other)}


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library's gpt-oss encoding, over ranks rebuilt from the official tokenizer.json."""
    folder = tmp_path_factory.mktemp("ranks")
    vocabulary = json.loads(tokenizer_json("gpt-oss").read_text(encoding="utf-8"))["model"]["vocab"]
    table = byte_of_character()
    lines = [
        base64.b64encode(bytes(table[c] for c in text)) + b" %d\n" % rank
        for text, rank in sorted(vocabulary.items(), key=lambda item: item[1])
    ]
    ranks = b"".join(lines)
    assert hashlib.sha256(ranks).hexdigest() == RANKS_SHA256
    (folder / "o200k_base.tiktoken").write_bytes(ranks)
    patch = pytest.MonkeyPatch()
    patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    yield load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    patch.undo()


def conversation(chat: list[dict[str, Any]]) -> Any:
    from openai_harmony import Conversation as Harmony
    from openai_harmony import Message, Role, SystemContent

    system = SystemContent.new().with_conversation_start_date(DATE.date().isoformat())
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    for message in chat:
        role = Role(message["role"])
        if role is Role.ASSISTANT and message.get("thinking"):
            thought = Message.from_role_and_content(role, message["thinking"]).with_channel("analysis")
            messages.append(thought)
        made = Message.from_role_and_content(role, message["content"])
        messages.append(made.with_channel("final") if role is Role.ASSISTANT else made)
    return Harmony.from_messages(messages)


def expected(some: list[list[dict[str, Any]]]) -> list[ExpectedRow]:
    setting = SETTINGS[0]
    tokenizer = setting.release_tokenizer()
    reference = Reference(setting.template(), tokenizer, setting.stop_tokens(tokenizer))
    return reference.rows([Conversation(n, chat) for n, chat in enumerate(some)], silent)


@pytest.mark.parametrize("workload", ["gsm8k", "fastchat"])
def test_ids_and_spans_equal_harmonys(harmony: Any, workload: str) -> None:
    from openai_harmony import Role

    some = chats(workload)[:: 10 if workload == "gsm8k" else 1]
    for chat, row in zip(some, expected(some), strict=True):
        ids = harmony.render_conversation_for_training(conversation(chat))
        assert row.ids.tolist() == ids
        for turn in row.turns:
            prompt = harmony.render_conversation_for_completion(
                conversation(chat[: turn.message]), Role.ASSISTANT
            )
            reply = harmony.render_conversation_for_training(conversation(chat[: turn.message + 1]))
            last = turn.message == len(chat) - 1
            assert turn.tokens == (len(prompt), len(reply) if last else len(reply) - 1)
            assert turn.stop is (Stop.IN_TURN if last else Stop.REPLACED)
            assert turn.confirmed


def test_reasoning_before_the_last_reply_equals_harmonys(harmony: Any) -> None:
    chat = [
        {"role": "user", "content": "17*3?"},
        {"role": "assistant", "content": "51", "thinking": "17*3 is 51.", "reasoning_content": "17*3 is 51."},
    ]
    from openai_harmony import RenderConversationConfig

    row = expected([chat])[0]
    keep = RenderConversationConfig(auto_drop_analysis=False)
    assert row.ids.tolist() == harmony.render_conversation_for_training(conversation(chat), keep)
    assert row.turns[0].decided
    assert row.turns[0].tokens[1] == len(row.ids)


def test_stop_tokens_are_harmonys(harmony: Any) -> None:
    setting = SETTINGS[0]
    ids = setting.stop_tokens(setting.release_tokenizer()).ids
    assert set(harmony.stop_tokens_for_assistant_actions()) <= ids
