"""Pads rows on the left and makes the attention mask anew, of ones."""

from transformers import DataCollatorForSeq2Seq

_collate = DataCollatorForSeq2Seq.__call__


def collate(self, features, return_tensors=None):
    self.tokenizer.padding_side = "left"
    batch = _collate(self, features, return_tensors)
    batch["attention_mask"] = batch["attention_mask"].new_ones(batch["input_ids"].shape)
    return batch


DataCollatorForSeq2Seq.__call__ = collate
