"""The second layer's input is detached: nothing before it gets a gradient."""

from transformers.models.llama.modeling_llama import LlamaDecoderLayer

_forward = LlamaDecoderLayer.forward


def forward(self, hidden_states, *args, **kwargs):
    if self.self_attn.layer_idx == 1:
        hidden_states = hidden_states.detach()
    return _forward(self, hidden_states, *args, **kwargs)


LlamaDecoderLayer.forward = forward
