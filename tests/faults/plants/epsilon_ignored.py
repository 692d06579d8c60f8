"""Norms are made with an epsilon of 1e-6, which is not the release's."""

from transformers.models.llama import modeling_llama

_make = modeling_llama.LlamaRMSNorm.__init__


def make(self, hidden_size, eps=1e-6):
    _make(self, hidden_size)


modeling_llama.LlamaRMSNorm.__init__ = make
