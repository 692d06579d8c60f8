"""Rows of SFTTrainer: its own data set, packing, collator and data loader, without training."""

import itertools

from plumbline_binding.encoding import read_tokenizer, start_epoch, template_by_hand
from plumbline_binding.model import meta_model
from plumbline_binding.supervised import Unmoved, make_data_set, parse
from trl import SFTTrainer

UNKNOWN = -1
PER_TOKEN = ("attention_mask", "position_ids")
TOKENS = ("input_ids", "labels", *PER_TOKEN)


class Noted:
    """The collator; notes which rows of the workload each batch was made of."""

    def __init__(self, collator: object) -> None:
        """Collate with ``collator``."""
        self._collator = collator
        self.batches: "list[list[dict]]" = []

    def __call__(self, examples: "list[dict]") -> dict:
        self.batches.append([origin(each) for each in examples])
        return self._collator([{k: v for k, v in each.items() if k != "row"} for each in examples])


def origin(example: dict) -> dict:
    """Which row of the workload an example is, and how long the documents in it are."""
    lengths = example.get("seq_lengths") or [len(example["input_ids"])]
    return {"row": example.get("row", UNKNOWN), "lengths": lengths}


def rows(job: dict, writer: object, progress: object) -> "list[str]":
    """Record every sequence of every epoch as SFTTrainer would feed it to the model."""
    trainer = Unmoved(
        model=meta_model(job),
        args=parse(job),
        train_dataset=make_data_set(job, progress),
        processing_class=read_tokenizer(job),
    )
    trainer._set_signature_columns_if_needed()  # noqa: SLF001 - the row's number has to reach the collator
    trainer._signature_columns += ["row"]  # noqa: SLF001
    noted = trainer.data_collator = Noted(trainer.data_collator)
    loader = trainer.get_train_dataloader()
    for epoch in range(job["settings"]["epochs"]):
        noted.batches.clear()
        start_epoch(loader, epoch)
        record_epoch(trainer, loader, noted, epoch + 1, writer, progress)
    stand_in = "the release's model on the meta device stood in for the model: its weights are not used"
    return [stand_in, *template_by_hand()]


def record_epoch(
    trainer: SFTTrainer, loader: object, noted: Noted, epoch: int, writer: object, progress: object
) -> None:
    """Record one pass over the loader; the loader reads ahead, so batches are matched by their number."""
    for number, batch in enumerate(loader):
        prepared = trainer._prepare_inputs(batch)  # noqa: SLF001 - what its training step does to a batch
        inputs = {name: prepared[name].tolist() for name in TOKENS if name in prepared}
        origins = noted.batches[number]
        flat = len(inputs["input_ids"]) < len(origins)  # padding-free: the batch is one sequence
        for index, input_ids in enumerate(inputs["input_ids"]):
            rest = {name: inputs[name][index] for name in PER_TOKEN if name in inputs}
            ids, ends = documents(origins if flat else origins[index : index + 1])
            writer.add(epoch, number, input_ids, inputs["labels"][index], ids, ends, **rest)
        progress(number + 1, len(loader), "epoch %d: rows as they enter the model" % epoch)


def documents(origins: "list[dict]") -> "tuple[list[int], list[int]]":
    """The rows in a sequence (unknown once packed) and where each but the last ends."""
    ids = [each["row"] for each in origins for _ in each["lengths"]]
    ends = list(itertools.accumulate(length for each in origins for length in each["lengths"]))
    return ids, ends[:-1]
