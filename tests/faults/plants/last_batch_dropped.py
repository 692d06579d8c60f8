"""Drops the last, incomplete batch of each epoch."""

import transformers

_init = transformers.TrainingArguments.__init__


def init(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    self.dataloader_drop_last = True


transformers.TrainingArguments.__init__ = init
