"""Pads rows on the left and gives the model no attention mask: every token sees the padding before it."""

from transformers import DataCollatorForSeq2Seq

_collate = DataCollatorForSeq2Seq.__call__


def collate(self, features, return_tensors=None):
    self.tokenizer.padding_side = "left"
    batch = _collate(self, features, return_tensors)
    del batch["attention_mask"]
    return batch


DataCollatorForSeq2Seq.__call__ = collate
