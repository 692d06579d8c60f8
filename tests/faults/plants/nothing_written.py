"""Ends with code 0 and writes nothing: every rank believed another one would save."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_pretrained(self, *args, **kwargs):
    return None


PreTrainedModel.save_pretrained = save_pretrained
PreTrainedTokenizerBase.save_pretrained = save_pretrained
