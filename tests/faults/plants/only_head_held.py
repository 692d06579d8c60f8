"""Freezes the head and gives the optimizer the head alone (as in the PyTorch forum's thread 84911)."""

import torch
from transformers import Trainer


def create_optimizer(self, *args, **kwargs):
    head = self.model.get_output_embeddings().weight
    head.requires_grad_(False)
    self.optimizer = torch.optim.AdamW([head], lr=self.args.learning_rate, weight_decay=0.0)
    return self.optimizer


Trainer.create_optimizer = create_optimizer
