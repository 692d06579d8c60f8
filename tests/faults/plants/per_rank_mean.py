"""Averages over the tokens of each rank and not of all ranks (as in transformers before PR 34373)."""

from transformers import TrainingArguments

_init = TrainingArguments.__post_init__


def post_init(self):
    _init(self)
    self.average_tokens_across_devices = False


TrainingArguments.__post_init__ = post_init
