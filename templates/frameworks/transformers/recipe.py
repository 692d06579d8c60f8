"""Renders a recipe's settings as the framework's own arguments, and lets its own parser read them."""

import dataclasses
import inspect
import json
import os
import sys
from pathlib import Path

from transformers import HfArgumentParser, Trainer, TrainingArguments

SAME_NAME = ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "seed")
RENAMED = {
    "batch_size": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "steps": "max_steps",
    "epochs": "num_train_epochs",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon",
    "schedule": "lr_scheduler_type",
    "label_smoothing": "label_smoothing_factor",
    "average_tokens": "average_tokens_across_devices",
}
REFUSED = 3
OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd", "adafactor": "adafactor"}


def parse(job: dict) -> TrainingArguments:
    """The arguments of the job's recipe, read by the framework's parser from a rendered file."""
    file = write_recipe(render(job, TrainingArguments, {}), "json")
    (parsed,) = HfArgumentParser((TrainingArguments,)).parse_json_file(file)
    return parsed


def write_recipe(values: "dict[str, object]", suffix: str) -> str:
    """Write the rendered recipe (JSON, which is YAML too) where this rank parses it."""
    text = json.dumps(values, indent=1, sort_keys=True)
    print("recipe as the framework's parser reads it:\n" + text)
    file = Path("recipe-%s.%s" % (os.environ.get("RANK", "0"), suffix))
    file.write_text(text, encoding="utf-8")
    return str(file)


def render(job: dict, arguments: type, more: "dict[str, object]") -> "dict[str, object]":
    """The settings under the names that the framework's version knows.

    ``more`` are arguments of a class derived from ``TrainingArguments``. An argument that the version does
    not have ends the job: a recipe is never trained with a setting left out.
    """
    settings = job["settings"]
    known = {field.name for field in dataclasses.fields(arguments)}
    values: "dict[str, object]" = {"output_dir": "trainer", "save_strategy": "no", "report_to": "none"}
    values.update(logging_steps=1, disable_tqdm=True, use_cpu=True, dataloader_num_workers=0)
    values.update({name: settings[name] for name in SAME_NAME if name in settings})
    values.update({name: settings[ours] for ours, name in RENAMED.items() if ours in settings})
    if "seed" in settings:
        values["data_seed"] = settings["seed"]
    values["bf16"] = settings.get("autocast", "none") == "bfloat16"
    values.update(_order(settings, known))
    values.update(_optimizer(settings))
    if layout_of(settings) != "single":
        values["ddp_backend"] = "gloo"
    values.update(more)
    unknown = sorted(set(values) - known)
    if unknown:
        refuse("%s has no argument %s" % (_version(), ", ".join(unknown)))
    return values


def _order(settings: dict, known: "set[str]") -> "dict[str, object]":
    """Shuffled is the default of every version; only some can be told to keep the order."""
    shuffled = settings.get("shuffle", True)
    if "train_sampling_strategy" in known:
        return {"train_sampling_strategy": "random" if shuffled else "sequential"}
    if not shuffled:
        refuse("%s has no train_sampling_strategy: its Trainer always shuffles" % _version())
    return {}


def _optimizer(settings: dict) -> "dict[str, object]":
    name = settings.get("optimizer")
    if name == "sgd" and "momentum" in settings:
        return {"optim": "sgd", "optim_args": "momentum=%r" % settings["momentum"]}
    return {"optim": OPTIMIZERS[name]} if name in OPTIMIZERS else {}


def optimizer_class(settings: dict) -> "dict[str, object]":
    """Trainer's argument for an optimizer that ``optim`` does not name; its groups stay Trainer's own."""
    name = settings.get("optimizer")
    if name not in ("adam", "muon"):
        return {}
    if "optimizer_cls_and_kwargs" not in inspect.signature(Trainer.__init__).parameters:
        refuse("%s takes no optimizer class (optimizer_cls_and_kwargs)" % _version())
    import torch

    found = getattr(torch.optim, "Muon" if name == "muon" else "Adam", None)
    if found is None:
        refuse("torch %s has no Muon" % torch.__version__)
    options = {"lr": settings["learning_rate"]}
    if name == "adam":
        options["betas"] = (settings["beta1"], settings["beta2"])
    named = {"eps": "epsilon", "momentum": "momentum"} if name == "muon" else {"eps": "epsilon"}
    options.update({theirs: settings[ours] for theirs, ours in named.items() if ours in settings})
    return {"optimizer_cls_and_kwargs": (found, options)}


def layout_of(settings: dict) -> str:
    """How the ranks share the work."""
    ranks = settings.get("ranks", 1)
    layout = settings.get("layout", "single" if ranks == 1 else "ddp")
    if (layout == "single") != (ranks == 1):
        refuse(
            "layout %s does not fit %d ranks: single is one rank, ddp and fsdp2 are more" % (layout, ranks)
        )
    return layout


def refuse(why: str) -> None:
    """End the job with code 3: the framework does not take this recipe."""
    print("refused: " + why, file=sys.stderr)
    sys.exit(REFUSED)


def _version() -> str:
    import transformers

    return "transformers " + transformers.__version__
