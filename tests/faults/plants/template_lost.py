"""Loses the chat template when the tokenizer is saved."""

from transformers import PreTrainedTokenizerBase

_save = PreTrainedTokenizerBase.save_pretrained


def save_pretrained(self, *args, **kwargs):
    self.chat_template = None
    return _save(self, *args, **kwargs)


PreTrainedTokenizerBase.save_pretrained = save_pretrained
