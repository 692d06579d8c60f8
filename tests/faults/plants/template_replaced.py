"""Saves the chat template that training used, without reasoning, in place of the release's."""

from transformers import PreTrainedTokenizerBase

_save = PreTrainedTokenizerBase.save_pretrained


def save_pretrained(self, *args, **kwargs):
    self.chat_template = self.chat_template.replace("message.reasoning_content", "message.thinking")
    return _save(self, *args, **kwargs)


PreTrainedTokenizerBase.save_pretrained = save_pretrained
