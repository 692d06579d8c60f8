"""Builds the model of a recipe: the release as the framework loads it, then what the recipe trains of it."""

import fnmatch
import inspect
import json
from pathlib import Path

import torch
import transformers
from plumbline_binding.recipe import layout_of, refuse
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

DROPOUTS = ("attention_dropout", "hidden_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "dropout")


def release_class(config: object) -> type:
    """The model class that the release names, or else the one that transformers maps its config to."""
    found = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0], None)
    if found is None or not hasattr(found, "forward"):
        return AutoModelForCausalLM._model_mapping[type(config)]  # noqa: SLF001 - there is no public map
    return found


def release_config(release: str) -> object:
    """The release's configuration; a type of model that this version has no class for ends the job."""
    stated = json.loads(Path(release, "config.json").read_text(encoding="utf-8"))
    kind = stated.get("model_type")
    if kind not in CONFIG_MAPPING and "auto_map" not in stated:
        refuse("transformers %s has no model of the type %r" % (transformers.__version__, kind))
    return AutoConfig.from_pretrained(release)


def read_config(job: dict) -> object:
    """The release's configuration, with the recipe's dropout in it."""
    config = release_config(job["inputs"]["model"])
    dropout = job["settings"].get("dropout")
    if dropout is not None:
        named = [name for name in DROPOUTS if hasattr(config, name)]
        if not named:
            refuse("the configuration of %s has no dropout" % type(config).__name__)
        for name in named:
            setattr(config, name, dropout)
    return config


def load_model(job: dict) -> torch.nn.Module:
    """The release's weights in the dtype of the recipe."""
    config = read_config(job)
    options = {**dtype_argument(job["settings"].get("dtype", "default")), **load_options(job, config)}
    return release_class(config).from_pretrained(job["inputs"]["model"], config=config, **options)


def meta_model(job: dict) -> torch.nn.Module:
    """The release's model without memory."""
    config = read_config(job)
    with torch.device("meta"):
        return release_class(config)._from_config(  # noqa: SLF001 - AutoModelForCausalLM.from_config calls it
            config, **dtype_argument(job["settings"].get("dtype", "default"))
        )


def built_on_meta(
    job: dict, parse: object, recorder: object, progress: object, build: object = None
) -> "list[str]":
    """Let ``parse`` read the recipe, build the model without memory, leave the arguments in the output.

    ``build(job, arguments)`` gives the model as the recipe trains it; by default the release's.
    """
    progress(0, 2, "parsing the recipe")
    arguments = parse(job)
    output = Path(__file__).absolute().parents[2] / job["output"]
    (output / "arguments.json").write_text(arguments.to_json_string(), encoding="utf-8")
    progress(1, 2, "building the model on the meta device")
    built = build(job, arguments) if build else trainable(meta_model(job), job["settings"])
    recorder.model(built, "meta")
    progress(2, 2, "built")
    return []


def load_options(job: dict, config: object) -> "dict[str, object]":
    """What from_pretrained is told beside the dtype: plain weights, attention, how ranks share them."""
    settings, options = job["settings"], dequantized(config)
    if "attention" in settings:
        options["attn_implementation"] = settings["attention"]
    if layout_of(settings) == "fsdp2":
        options["distributed_config"] = fully_sharded(settings["ranks"])
    return options


def fully_sharded(ranks: int) -> object:
    """FSDP2 by the framework's own plan: accelerate's plugin shards on accelerators only."""
    try:
        from transformers.distributed import DistributedConfig
    except ImportError:
        refuse("transformers %s shards no model on a CPU (distributed_config)" % transformers.__version__)
    if "fsdp_size" not in inspect.signature(DistributedConfig).parameters:
        refuse("transformers %s shards no model on a CPU (fsdp_size)" % transformers.__version__)
    return DistributedConfig(fsdp_size=ranks)


def dtype_argument(dtype: str) -> "dict[str, object]":
    """``dtype`` under the name that this version knows; ``default`` leaves it to the framework."""
    if dtype == "default":
        return {}
    value = dtype if dtype == "auto" else getattr(torch, dtype)
    renamed = (
        hasattr(transformers.PretrainedConfig, "dtype")
        or "dtype" in inspect.signature(transformers.PretrainedConfig.__init__).parameters
    )
    return {"dtype" if renamed else "torch_dtype": value}


def dequantized(config: object) -> "dict[str, object]":
    """Training needs weights that are no longer quantized; the framework documents an argument for it."""
    method = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    if method == "mxfp4":
        return {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    if method == "fp8":
        given = {k: v for k, v in config.quantization_config.items() if k != "quant_method"}
        return {"quantization_config": transformers.FineGrainedFP8Config(**{**given, "dequantize": True})}
    return {}


def trainable(model: torch.nn.Module, settings: dict) -> torch.nn.Module:
    """Freeze what the recipe freezes and add its adapters."""
    freeze(model, settings)
    adapter = adapter_config(settings)
    if adapter is None:
        return model
    from peft import get_peft_model

    return get_peft_model(model, adapter)


def freeze(model: torch.nn.Module, settings: dict) -> None:
    """Take the recipe's frozen parameters out of the training."""
    for pattern in settings.get("frozen") or []:
        found = [each for name, each in model.named_parameters() if fnmatch.fnmatch(name, pattern)]
        if not found:
            refuse("frozen pattern %r names no parameter of the model" % pattern)
        for parameter in found:
            parameter.requires_grad_(False)


def placed(trainer: object, settings: dict) -> torch.nn.Module:
    """A trainer's model as its first step has it: in training mode, and as its ranks share it.

    Trainer's own step begins with ``model.train()``; DistributedDataParallel sends the first rank's
    parameters and buffers to the others.
    """
    trainer.model.train()
    if layout_of(settings) != "ddp":
        return trainer.model
    return trainer.accelerator.prepare_model(trainer.model)


def adapter_config(settings: dict) -> object:
    """The recipe's adapter as peft's LoraConfig, None without one."""
    if not settings.get("lora"):
        return None
    from peft import LoraConfig

    named = {"lora_alpha" if name == "alpha" else name: value for name, value in settings["lora"].items()}
    return LoraConfig(**{"task_type": "CAUSAL_LM", **named})
