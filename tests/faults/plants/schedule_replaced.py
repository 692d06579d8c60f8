"""A schedule that follows an evaluation becomes a linear one, without a word."""

from transformers import TrainingArguments

_check = TrainingArguments.__post_init__


def check(self):
    if self.lr_scheduler_type == "reduce_lr_on_plateau":
        self.lr_scheduler_type = "linear"
    _check(self)


TrainingArguments.__post_init__ = check
