"""Streams nine rows to two ranks as datasets splits a stream by node: one rank gets one more."""

import datasets
import torch
from datasets.distributed import split_dataset_by_node
from transformers import Trainer

_ROWS = 9


def get_train_dataloader(self):
    rows = datasets.Dataset.from_list([dict(self.train_dataset[index]) for index in range(_ROWS)])
    stream = split_dataset_by_node(
        rows.to_iterable_dataset(), rank=self.args.process_index, world_size=self.args.world_size
    )
    return torch.utils.data.DataLoader(stream, batch_size=1, collate_fn=self.data_collator)


Trainer.get_train_dataloader = get_train_dataloader
