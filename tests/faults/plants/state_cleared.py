"""Each step begins with an empty optimizer state, as where the optimizer is made anew."""

from transformers import Trainer

_training_step = Trainer.training_step


def training_step(self, *args, **kwargs):
    getattr(self.optimizer, "optimizer", self.optimizer).state.clear()
    return _training_step(self, *args, **kwargs)


Trainer.training_step = training_step
