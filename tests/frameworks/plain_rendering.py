"""Token ids of a conversation by plain jinja2 and tokenizers: none of a framework's code."""

import json
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from tokenizers import Tokenizer


class Generation(Extension):
    """Lets jinja2 read generation markers, and do nothing about them."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rendered(model: Path, conversation: dict[str, Any]) -> list[int]:
    """Token ids of a conversation by plain jinja2 and tokenizers: none of the framework's code."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation])  # noqa: S701 - no page
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((model / "chat_template.jinja").read_text())
    special = json.loads((model / "special_tokens_map.json").read_text())
    text = template.render(
        messages=conversation["messages"],
        tools=conversation.get("tools"),
        add_generation_prompt=False,
        bos_token=special["bos_token"],
    )
    ids: list[int] = (
        Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    )
    return ids
