"""Shifts the labels once in the collator, before the model shifts them again."""

from transformers import DataCollatorForSeq2Seq

_collate = DataCollatorForSeq2Seq.__call__


def collate(self, features, return_tensors=None):
    batch = _collate(self, features, return_tensors)
    labels = batch["labels"].roll(-1, dims=1)
    labels[:, -1] = self.label_pad_token_id
    batch["labels"] = labels
    return batch


DataCollatorForSeq2Seq.__call__ = collate
