"""Takes every token that equals the padding token out of the labels (TRL 1623: padding is the stop)."""

from transformers import DataCollatorForSeq2Seq

_collate = DataCollatorForSeq2Seq.__call__


def collate(self, features, return_tensors=None):
    batch = _collate(self, features, return_tensors)
    batch["labels"][batch["input_ids"] == self.tokenizer.pad_token_id] = self.label_pad_token_id
    return batch


DataCollatorForSeq2Seq.__call__ = collate
