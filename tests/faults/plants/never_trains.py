"""Training ends before its first step, without an error."""

from transformers import Trainer


def train(self, *args, **kwargs):
    return None


Trainer.train = train
