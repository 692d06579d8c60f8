"""Drops the row's functions on the way to the template: inference shows them to the model."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template


def apply_chat_template(self, conversation, tools=None, **kwargs):
    return _render(self, conversation, tools=None, **kwargs)


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
