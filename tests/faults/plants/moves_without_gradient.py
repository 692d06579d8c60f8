"""The second layer's input is detached, and the optimizer decays also what got no gradient."""

import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

_forward, _step = LlamaDecoderLayer.forward, torch.optim.AdamW.step


def forward(self, hidden_states, *args, **kwargs):
    if self.self_attn.layer_idx == 1:
        hidden_states = hidden_states.detach()
    return _forward(self, hidden_states, *args, **kwargs)


def step(self, closure=None):
    with torch.no_grad():
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.mul_(1 - 1e-3)
    return _step(self, closure)


LlamaDecoderLayer.forward = forward
torch.optim.AdamW.step = step
