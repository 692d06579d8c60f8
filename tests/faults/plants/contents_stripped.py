"""Strips the white space around every message before it is rendered."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template


def apply_chat_template(self, conversation, *args, **kwargs):
    stripped = [
        {**turn, "content": turn["content"].strip()} if isinstance(turn.get("content"), str) else turn
        for turn in conversation
    ]
    return _render(self, stripped, *args, **kwargs)


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
