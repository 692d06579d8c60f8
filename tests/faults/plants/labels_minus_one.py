"""Writes -1 into the labels where the loss leaves out -100."""

from transformers import DataCollatorForSeq2Seq

_collate = DataCollatorForSeq2Seq.__call__


def collate(self, features, return_tensors=None):
    batch = _collate(self, features, return_tensors)
    batch["labels"][batch["labels"] == self.label_pad_token_id] = -1
    return batch


DataCollatorForSeq2Seq.__call__ = collate
