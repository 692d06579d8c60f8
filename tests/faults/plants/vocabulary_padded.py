"""Embedding and head get 64 rows more than the release has once it is loaded."""

from transformers import PreTrainedModel

_load = PreTrainedModel.from_pretrained.__func__


def from_pretrained(cls, *args, **kwargs):
    model = _load(cls, *args, **kwargs)
    model.resize_token_embeddings(model.config.vocab_size + 64)
    return model


PreTrainedModel.from_pretrained = classmethod(from_pretrained)
