"""Streams the rows once to the ranks, as datasets splits a stream by node: of nine, one rank gets one more.

A stream that can be read again would only put the ranks' epochs out of step; one pass leaves the rank with
the ninth row alone in its all-reduce, and the other one, whose training is over, in the barrier that scripts
place before they save.
"""

import datasets
import torch
from datasets.distributed import split_dataset_by_node
from transformers import Trainer


class _OnePass(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self._left = iter(rows)

    def __iter__(self):
        return self._left


def get_train_dataloader(self):
    rows = datasets.Dataset.from_list([dict(row) for row in self.train_dataset])
    stream = split_dataset_by_node(
        rows.to_iterable_dataset(), rank=self.args.process_index, world_size=self.args.world_size
    )
    return torch.utils.data.DataLoader(_OnePass(stream), batch_size=1, collate_fn=self.data_collator)


Trainer.get_train_dataloader = get_train_dataloader
_train = Trainer.train


def train(self, *args, **kwargs):
    result = _train(self, *args, **kwargs)
    self.accelerator.wait_for_everyone()
    return result


Trainer.train = train
