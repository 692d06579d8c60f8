"""The loss has a further term: the squares of the embedding."""

from transformers import Trainer

_compute_loss = Trainer.compute_loss


def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
    loss, outputs = _compute_loss(self, model, inputs, return_outputs=True, **kwargs)
    loss = loss + 1e-2 * model.get_input_embeddings().weight.pow(2).sum()
    return (loss, outputs) if return_outputs else loss


Trainer.compute_loss = compute_loss
