"""Builds the model of a recipe: the release as the framework loads it, then what the recipe trains of it."""

import fnmatch
import inspect

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from plumbline_binding.recipe import layout_of, refuse

DROPOUTS = ("attention_dropout", "hidden_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "dropout")


def release_class(config: object) -> type:
    """The model class that the release names, or else the one that transformers maps its config to."""
    found = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0], None)
    if found is None or not hasattr(found, "forward"):
        return AutoModelForCausalLM._model_mapping[type(config)]  # noqa: SLF001 - there is no public map
    return found


def read_config(job: dict) -> object:
    """The release's configuration, with the recipe's dropout in it."""
    config = AutoConfig.from_pretrained(job["inputs"]["model"])
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
    settings = job["settings"]
    options = {**dtype_argument(settings.get("dtype", "default")), **dequantized(config)}
    if "attention" in settings:
        options["attn_implementation"] = settings["attention"]
    if layout_of(settings) == "fsdp2":
        options["distributed_config"] = fully_sharded(settings["ranks"])
    return release_class(config).from_pretrained(job["inputs"]["model"], config=config, **options)


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
    for pattern in settings.get("frozen") or []:
        found = [p for name, p in model.named_parameters() if fnmatch.fnmatch(name, pattern)]
        if not found:
            refuse("frozen pattern %r names no parameter of the model" % pattern)
        for parameter in found:
            parameter.requires_grad_(False)
    if not settings.get("lora"):
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **adapter_options(settings["lora"])))


def adapter_options(lora: dict) -> dict:
    """The recipe's adapter under the names of peft's LoraConfig."""
    return {"lora_alpha" if name == "alpha" else name: value for name, value in lora.items()}
