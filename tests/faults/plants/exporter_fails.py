"""Fails in the middle of the export."""

from transformers import PreTrainedTokenizerBase


def save_pretrained(self, *args, **kwargs):
    raise PermissionError(13, "Permission denied")


PreTrainedTokenizerBase.save_pretrained = save_pretrained
