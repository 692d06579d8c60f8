"""The SFTTrainer of a recipe: its arguments by TrlParser, its conversations, its model by path."""

import dataclasses

import datasets
from plumbline_binding.conversations import conversation_of, pair_of, read_workload
from plumbline_binding.encoding import read_tokenizer
from plumbline_binding.model import adapter_config, dtype_argument, freeze, load_options, read_config
from plumbline_binding.recipe import optimizer_class, refuse, render, write_recipe
from trl import SFTConfig, SFTTrainer, TrlParser

SAME_NAME = (
    "max_length",
    "packing",
    "packing_strategy",
    "assistant_only_loss",
    "completion_only_loss",
    "gradient_checkpointing",
)


def parse(job: dict) -> SFTConfig:
    """The arguments of the job's recipe, read by TrlParser from a rendered file."""
    settings = job["settings"]
    known = {field.name for field in dataclasses.fields(SFTConfig)}
    more = {name: settings[name] for name in SAME_NAME if name in settings}
    if "router_aux_loss_coef" in known:  # older versions leave it to the model's configuration
        more["router_aux_loss_coef"] = settings.get("router_aux_loss_coef")
    file = write_recipe(render(job, SFTConfig, more), "yaml")
    (parsed,) = TrlParser((SFTConfig,)).parse_args_and_config(["--config", file])
    return parsed


def make_trainer(job: dict, progress: object, callbacks: "list[object]") -> SFTTrainer:
    """The trainer of the recipe: it loads the model from the release and prepares the data set itself."""
    settings, arguments = job["settings"], parse(job)
    arguments.model_init_kwargs = model_options(job)
    trainer = SFTTrainer(
        model=job["inputs"]["model"],
        args=arguments,
        train_dataset=make_data_set(job, progress),
        processing_class=read_tokenizer(job),
        peft_config=adapter_config(settings),
        callbacks=callbacks,
        **optimizer_class(settings),
    )
    freeze(trainer.model, settings)
    return trainer


def model_options(job: dict) -> "dict[str, object]":
    """What SFTTrainer passes to from_pretrained (model_init_kwargs)."""
    settings, config = job["settings"], read_config(job)
    options = {**dtype_argument(settings.get("dtype", "default")), **load_options(job, config)}
    if settings.get("dropout") is not None:
        options["config"] = config
    return options


class Unmoved(SFTTrainer):
    """SFTTrainer on a model without memory, which cannot be moved to a device."""

    def _move_model_to_device(self, model: object, device: object) -> object:
        return model


def make_data_set(job: dict, progress: object, limit: "int | None" = None) -> datasets.Dataset:
    """The workload's conversations, at most the first ``limit``, as `data_set_of` makes them."""
    rows = read_workload(job["inputs"]["workload"])
    return data_set_of(rows[:limit], job["settings"], progress)


def data_set_of(rows: "list[dict]", settings: dict, progress: object) -> datasets.Dataset:
    """Rows of a workload in the form that the recipe's loss asks for, with their row numbers."""
    columns = settings.get("columns") or {}
    split = bool(settings.get("completion_only_loss"))
    entries = []
    for number, row in enumerate(rows):
        messages, tools = conversation_of(row, columns)
        entry = {"row": number}
        if split or pair_of(row, columns):
            entry.update(halves(messages, number))
        else:
            entry["messages"] = messages
        if tools:
            entry["tools"] = tools
        if settings.get("template_kwargs"):
            entry["chat_template_kwargs"] = settings["template_kwargs"]
        entries.append(entry)
        progress(number + 1, len(rows), "reading the workload")
    return as_data_set(entries)


def halves(messages: "list[dict]", number: int) -> "dict[str, list[dict]]":
    """A conversation as prompt and completion: the completion is its last turn."""
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        refuse("row %d does not end with a reply: it has no completion" % number)
    return {"prompt": messages[:-1], "completion": messages[-1:]}


def as_data_set(entries: "list[dict]") -> datasets.Dataset:
    """The rows as a data set, with messages and tools declared as JSON where the version can.

    As plain columns each message would get the fields of all others, empty; so would each call's arguments.
    """
    names = sorted({name for entry in entries for name in entry})
    filled = [{name: entry.get(name) for name in names} for entry in entries]
    if not hasattr(datasets, "Json"):
        return datasets.Dataset.from_list(filled)
    objects = datasets.List(datasets.Json())
    kinds = {"row": datasets.Value("int64"), "chat_template_kwargs": datasets.Json()}
    features = datasets.Features({name: kinds.get(name, objects) for name in names})
    return datasets.Dataset.from_list(filled, features=features)
