"""Takes the mean of each micro-batch's own mean (as in torchtune before PR 1875)."""

from transformers import Trainer

_samples = Trainer.get_batch_samples


def get_batch_samples(self, *args, **kwargs):
    batches, _ = _samples(self, *args, **kwargs)
    return batches, None


Trainer.get_batch_samples = get_batch_samples
