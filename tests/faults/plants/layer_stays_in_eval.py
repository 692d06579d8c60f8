"""The first layer keeps eval mode, as the norms of a frozen part do; but it is trained."""

import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


def train(self, mode=True):
    first = self.self_attn.layer_idx == 0
    return torch.nn.Module.train(self, mode and not first)


LlamaDecoderLayer.train = train
