"""Rows of the transformers Trainer: chat template, data set, collator and data loader, without training."""

import inspect

import torch
from plumbline_binding.encoding import (
    encode,
    make_collator,
    read_tokenizer,
    start_epoch,
    template_by_hand,
    tokenizer_argument,
)
from plumbline_binding.model import read_config, release_class
from plumbline_binding.recipe import parse
from transformers import Trainer


class LoggedRows(torch.utils.data.Dataset):
    """The encoded rows; remembers the order in which the loader fetched them."""

    def __init__(self, rows: "list[dict[str, list[int]]]") -> None:
        """Hold the encoded rows."""
        self._rows = rows
        self.fetched: "list[int]" = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> "dict[str, list[int]]":
        self.fetched.append(int(index))
        return dict(self._rows[index])


class StandIn(torch.nn.Module):
    """Takes the arguments that the release's model takes, without its weights."""

    def __init__(self, config: object, forward: object) -> None:
        """Carry the release's config and the signature of its model's ``forward``."""
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = config
        self.forward = _taking(inspect.signature(forward))


def _taking(signature: "inspect.Signature") -> object:
    def forward(**arguments: object) -> None:
        raise RuntimeError("the stand-in for the model is never run")

    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    forward.__signature__ = signature.replace(parameters=parameters)
    return forward


def rows(job: dict, writer: object, progress: object) -> "list[str]":
    """Record every sequence of every epoch as the Trainer would feed it to the model."""
    settings = job["settings"]
    tokenizer = read_tokenizer(job)
    data_set = LoggedRows(encode(job, tokenizer, progress))
    trainer = make_trainer(job, tokenizer, data_set)
    loader = trainer.get_train_dataloader()
    for epoch in range(settings["epochs"]):
        data_set.fetched.clear()
        start_epoch(loader, epoch)
        record_epoch(trainer, loader, data_set, epoch + 1, writer, progress)
    stand_in = "a module without weights stood in for the model: only the signature of its forward is used"
    return [stand_in, *template_by_hand()]


def make_trainer(job: dict, tokenizer: object, data_set: LoggedRows) -> Trainer:
    """The Trainer of the recipe with a stand-in for the model."""
    config = read_config(job)
    return Trainer(
        model=StandIn(config, release_class(config).forward),
        args=parse(job),
        train_dataset=data_set,
        data_collator=make_collator(tokenizer, job["settings"]),
        **tokenizer_argument(Trainer, tokenizer),
    )


def record_epoch(
    trainer: Trainer, loader: object, data_set: LoggedRows, epoch: int, writer: object, progress: object
) -> None:
    """Record one pass over the loader; the loader reads ahead, so ids are taken from the front."""
    taken = 0
    for number, batch in enumerate(loader):
        prepared = trainer._prepare_inputs(batch)  # noqa: SLF001 - what its training step does to a batch
        inputs = {name: value.tolist() for name, value in prepared.items()}
        extra = [name for name in ("attention_mask", "position_ids") if name in inputs]
        for index, input_ids in enumerate(inputs["input_ids"]):
            rest = {name: inputs[name][index] for name in extra}
            row = data_set.fetched[taken]
            writer.add(epoch, number, input_ids, inputs["labels"][index], [row], **rest)
            taken += 1
        progress(taken, len(data_set), "epoch %d: rows as they enter the model" % epoch)
