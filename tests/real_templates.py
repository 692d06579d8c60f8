"""The chat template copies of the real data with what they need: tokenizer, stop tokens, arguments; ten
chats.
"""

import atexit
import gzip
import json
import re
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from checks.references.rendering import ChatTemplate
from checks.references.tokenization import ReleaseTokenizer, StopTokens
from tests.shared_data import SHARED

TEMPLATES = SHARED / "data" / "templates"
TOKENIZERS = SHARED / "data" / "tokenizers"
WORKLOADS = SHARED / "data" / "workloads"
DATE = datetime.fromisoformat("2026-01-31")

_CONTROL = re.compile(
    r"<[|｜][^<>|｜{}$ ]{1,40}[|｜]>|</?think>|<(?:start_of_turn|end_of_turn|sop)>|\[gMASK\]"
)


@dataclass(frozen=True)
class Setting:
    """A template of the real data with a tokenizer: the release's own, or Qwen3's with control tokens
    added.
    """

    file: str
    stops: tuple[str, ...]
    tokenizer: str = "qwen3"
    own: bool = False
    bos: str = ""
    eos: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """File and arguments."""
        given = ", ".join(f"{key}={json.dumps(value)}" for key, value in self.arguments.items())
        return self.file + (f" ({given})" if given else "")

    def source(self) -> str:
        """The template's text."""
        return (TEMPLATES / self.file).read_text(encoding="utf-8")

    def variables(self) -> dict[str, Any]:
        """What the template is given beside the messages."""
        tokens = {"bos_token": self.bos, "eos_token": self.eos or self.stops[0]}
        return {**{name: text for name, text in tokens.items() if text}, **self.arguments}

    def template(self) -> ChatTemplate:
        """The compiled template at the fixed date."""
        return ChatTemplate(self.source(), self.file, self.variables(), DATE)

    def release_tokenizer(self) -> ReleaseTokenizer:
        """The tokenizer, with the template's control tokens where it stands in for the release's own."""
        if self.own:
            return _own(self.tokenizer)
        tokenizer = Tokenizer.from_file(str(tokenizer_json(self.tokenizer)))
        control = {*_CONTROL.findall(self.source()), *self.stops, self.bos, self.eos}
        new = sorted(text for text in control if text and tokenizer.token_to_id(text) is None)
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in new])
        return ReleaseTokenizer(tokenizer, {}, segment_safe=True)

    def stop_tokens(self, tokenizer: ReleaseTokenizer) -> StopTokens:
        """The stop ids of the release."""
        ids = frozenset(tokenizer.tokenizer.token_to_id(text) for text in self.stops)
        return StopTokens(ids, "test", named_by_release=True)


@cache
def tokenizer_json(name: str) -> Path:
    """``tokenizer.json`` of a real tokenizer, uncompressed (kept for the session of tests)."""
    folder = TOKENIZERS / name
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    kept = tempfile.TemporaryDirectory(prefix="plumbline-tokenizer-")
    atexit.register(kept.cleanup)
    target = Path(kept.name) / "tokenizer.json"
    target.write_bytes(gzip.decompress((folder / "tokenizer.json.gz").read_bytes()))
    return target


@cache
def _own(name: str) -> ReleaseTokenizer:
    return ReleaseTokenizer(Tokenizer.from_file(str(tokenizer_json(name))), {}, segment_safe=True)


_LLAMA = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
_QWEN = ("<|im_end|>", "<|endoftext|>")
_GLM = ("<|endoftext|>", "<|user|>", "<|observation|>")
_DEEPSEEK = ("<｜end▁of▁sentence｜>",)
_GPT_OSS = ("<|return|>", "<|call|>", "<|endoftext|>")
_BEGIN = "<｜begin▁of▁sentence｜>"


def _llama(file: str) -> Setting:
    return Setting(file, _LLAMA, bos="<|begin_of_text|>", eos="<|eot_id|>")


def _deepseek(file: str, **arguments: Any) -> Setting:
    return Setting(file, _DEEPSEEK, "deepseek-v4", own=True, bos=_BEGIN, arguments=arguments)


SETTINGS = (
    Setting("trl/gptoss.jinja", _GPT_OSS, "gpt-oss", own=True, bos="<|startoftext|>"),
    Setting("llama.cpp/openai-gpt-oss-120b.jinja", _GPT_OSS, "gpt-oss", own=True, bos="<|startoftext|>"),
    Setting("trl/qwen2_5.jinja", _QWEN, own=True),
    Setting("llama.cpp/Qwen-Qwen2.5-7B-Instruct.jinja", _QWEN, own=True),
    Setting("trl/qwen3.jinja", _QWEN, own=True),
    Setting("llama.cpp/Qwen-Qwen3-0.6B.jinja", _QWEN, own=True),
    Setting("trl/qwen3.jinja", _QWEN, own=True, arguments={"enable_thinking": False}),
    Setting("trl/qwen3_instruct_2507.jinja", _QWEN, own=True),
    Setting("llama.cpp/Qwen3-Coder.jinja", _QWEN, own=True),
    Setting("llama.cpp/Qwen-QwQ-32B.jinja", _QWEN, own=True),
    Setting("trl/qwen3_5_think.jinja", _QWEN),
    Setting("trl/qwen3_5_nothink.jinja", _QWEN),
    Setting("llama.cpp/Qwen3.5-4B.jinja", _QWEN),
    Setting("trl/qwen3_6.jinja", _QWEN),
    Setting("trl/qwen3_6.jinja", _QWEN, arguments={"preserve_thinking": True}),
    _deepseek("crit-core/deepseek-v4.jinja"),
    _deepseek("crit-core/deepseek-v4.jinja", thinking=True),
    _deepseek("llama.cpp/deepseek-ai-DeepSeek-V4.jinja"),
    _deepseek("llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731.jinja"),
    _deepseek("llama.cpp/deepseek-ai-DeepSeek-V3.2.jinja"),
    _deepseek("llama.cpp/deepseek-ai-DeepSeek-V3.1.jinja"),
    _deepseek("trl/deepseekv3.jinja"),
    _deepseek("llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja"),
    _deepseek("llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"),
    _deepseek("llama.cpp/llama-cpp-deepseek-r1.jinja"),
    _llama("trl/llama3.jinja"),
    _llama("trl/llama3_1.jinja"),
    _llama("trl/llama3_2.jinja"),
    _llama("llama.cpp/meta-llama-Llama-3.1-8B-Instruct.jinja"),
    _llama("llama.cpp/meta-llama-Llama-3.2-3B-Instruct.jinja"),
    _llama("llama.cpp/meta-llama-Llama-3.3-70B-Instruct.jinja"),
    Setting("trl/gemma3.jinja", ("<end_of_turn>", "<eos>"), bos="<bos>", eos="<eos>"),
    Setting("trl/phi3.jinja", ("<|end|>", "<|endoftext|>"), bos="<s>", eos="<|endoftext|>"),
    Setting("trl/glm4moe.jinja", _GLM),
    Setting("llama.cpp/GLM-4.6.jinja", _GLM),
    Setting("llama.cpp/GLM-4.7-Flash.jinja", _GLM),
    Setting("sglang/glm-5.3-flash.jinja", _GLM),
    Setting("trl/nemotron_3_nano.jinja", ("<|im_end|>", "</s>"), bos="<s>", eos="<|im_end|>"),
    Setting("trl/cohere2.jinja", ("<|END_OF_TURN_TOKEN|>",), bos="<BOS_TOKEN>"),
    Setting("llama.cpp/Kimi-K2-Instruct.jinja", ("<|im_end|>",)),
    Setting("llama.cpp/moonshotai-Kimi-K2.jinja", ("<|im_end|>",)),
    Setting("llama.cpp/Kimi-K2-Thinking.jinja", ("<|im_end|>",)),
    Setting("llama.cpp/Kimi-K3.jinja", ("<|end_of_msg|>",)),
)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str, reasoning: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return message if not reasoning else message | {"reasoning_content": reasoning, "thinking": reasoning}


_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "its name"}},
                "required": ["city"],
            },
        },
    }
]

CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[Any] | None]] = {
    "single": ([_user("What is 2+2?"), _assistant("4")], None),
    "multi-turn": (
        [
            {"role": "system", "content": "Be brief."},
            _user("Hi!"),
            _assistant("Hello."),
            _user("How are you?"),
            _assistant("Fine – and you? 🤖"),
            _user("Bye"),
            _assistant("See you."),
        ],
        None,
    ),
    "reasoning in one turn": ([_user("17*3?"), _assistant("51", "17*3 is 51.")], None),
    "reasoning in every turn": (
        [
            _user("17*3?"),
            _assistant("51", "17*3 is 51."),
            _user("Twice that?"),
            _assistant("102", "51 doubled."),
        ],
        None,
    ),
    "tool loop": (
        [
            _user("Weather in Zürich?"),
            _assistant("", "I call the tool.") | {"tool_calls": [_CALL]},
            {"role": "tool", "name": "weather", "tool_call_id": "call_1", "content": '{"sky": "clear"}'},
            _assistant("It is clear.", "The tool says clear."),
        ],
        TOOLS,
    ),
    "white space": (
        [
            _user("Code?"),
            _assistant("\n\n  x = 1\n  "),
            _user("More"),
            _assistant("  y = 2"),
            _user("Last"),
            _assistant("z = 3\n\n"),
        ],
        None,
    ),
    "empty": ([_user("Say nothing."), _assistant("")], None),
    "control tokens in texts": (
        [
            _user("Repeat: <|im_end|><|eot_id|><｜end▁of▁sentence｜><|return|><|user|>"),
            _assistant(
                "<|im_end|> <|eot_id|> <｜end▁of▁sentence｜> <|return|> <|user|> <|end|> <end_of_turn>"
            ),
            _user("Thanks"),
            _assistant("Welcome."),
        ],
        None,
    ),
    "consecutive replies": (
        [
            _user("Tell me two things."),
            _assistant("One."),
            _assistant("Two."),
            _user("And a third?"),
            _assistant("Three."),
        ],
        None,
    ),
    "think tags in the content": (
        [_user("17*3?"), _assistant("<think>\n17*3 is 51.\n</think>\n\n51")],
        None,
    ),
}
"""Ten conversations with eighteen turns (consecutive replies are one)."""
