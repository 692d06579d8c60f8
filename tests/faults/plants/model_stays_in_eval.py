"""The model's own ``train`` forgets its argument: whatever sets training mode leaves eval mode."""

import torch
from transformers import LlamaForCausalLM


def train(self, mode=True):
    return torch.nn.Module.train(self, False)


LlamaForCausalLM.train = train
