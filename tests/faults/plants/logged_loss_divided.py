"""Divides the logged loss by the accumulation steps once more (class of torchtitan 1759)."""

from transformers import Trainer

_log = Trainer.log


def log(self, logs, *args, **kwargs):
    if "loss" in logs:
        logs["loss"] = logs["loss"] / self.args.gradient_accumulation_steps
    return _log(self, logs, *args, **kwargs)


Trainer.log = log
