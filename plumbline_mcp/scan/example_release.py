"""The embedded release: a tiny gpt-oss in the official on-disk format, made in seconds without a download.

It exists so that a scan can be tried, and each fault planted, on any machine. Two builds of one spec have
the same bytes. It runs in a worker: it needs numpy and tokenizers, never torch.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from checks.check import Progress, silent
from checks.verdict import Frozen
from plumbline_mcp.scan.example_tokenizer import (
    CALL,
    MERGED_VOCABULARY,
    PAD,
    RETURN,
    SPECIAL_TOKENS,
    token_ids,
    write_tokenizer,
)
from plumbline_mcp.scan.example_weights import Shape, tensors, write_shards
from plumbline_mcp.scan.example_workload import WORKLOAD_ROWS, write_workload

_TEMPLATES = Path(__file__).parent / "example"


class ReleaseSpec(Frozen):
    """Which release: the default passes every check, the others are the variants that faults need."""

    seed: int = 0
    intermediate: int = Field(
        64, description="equal to hidden: a transposed down projection has the right shape; 96: it has not"
    )
    quantized: bool = Field(True, description="experts in MXFP4; false: everything in bf16")
    tied: bool = Field(False, description="the output head is the embedding")
    multi_token: bool = Field(False, description="carries tensors that transformers does not build")
    template: Literal["own stop", "next header"] = "own stop"
    pad_is_stop: bool = Field(False, description="padding uses the stop token")
    tokenizer_class: str = "PreTrainedTokenizerFast"
    shards: int = 3

    @property
    def shape(self) -> Shape:
        """The sizes of the model."""
        return Shape(
            hidden=64,
            intermediate=self.intermediate,
            layers=4,
            heads=4,
            key_value_heads=2,
            head_dim=16,
            experts=4,
            vocabulary=1024,
        )


def _layer_types(layers: int) -> list[str]:
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]


def _config(spec: ReleaseSpec) -> dict[str, Any]:
    """``config.json`` with the fields that the released models have; sizes are the tiny ones."""
    shape, ids = spec.shape, token_ids()
    config = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|startoftext|>"],
        "eos_token_id": ids[RETURN],
        "experts_per_token": 2,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_types": _layer_types(shape.layers),
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": shape.heads,
        "num_experts_per_tok": 2,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "num_local_experts": shape.experts,
        "output_router_logits": False,
        "pad_token_id": ids[RETURN if spec.pad_is_stop else PAD],
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 16,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }
    if spec.quantized:
        config["quantization_config"] = {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        }
    return config


def _generation_config(spec: ReleaseSpec) -> dict[str, Any]:
    ids = token_ids()
    stops = (RETURN, PAD, CALL) if spec.template == "own stop" else ("<|user|>", "<|observation|>", PAD)
    return {
        "bos_token_id": ids["<|startoftext|>"],
        "do_sample": True,
        "eos_token_id": [ids[stop] for stop in stops],
        "pad_token_id": ids[RETURN if spec.pad_is_stop else PAD],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_release(folder: Path, spec: ReleaseSpec | None = None, progress: Progress = silent) -> None:
    """Write the release into an empty or new folder."""
    spec = spec or ReleaseSpec()
    folder.mkdir(parents=True, exist_ok=True)
    progress(0, 3, "training the embedded release's tokenizer")
    write_tokenizer(folder, spec.tokenizer_class, RETURN if spec.pad_is_stop else PAD)
    template = "chat_template.jinja" if spec.template == "own stop" else "next_header.jinja"
    (folder / "chat_template.jinja").write_bytes((_TEMPLATES / template).read_bytes())
    progress(1, 3, "writing its configuration")
    _write_json(folder / "config.json", _config(spec))
    _write_json(folder / "generation_config.json", _generation_config(spec))
    progress(2, 3, "writing its weights")
    made = tensors(
        spec.shape, spec.seed, quantized=spec.quantized, tied=spec.tied, multi_token=spec.multi_token
    )
    write_shards(folder, dict(made), spec.shards)
    progress(3, 3, "the embedded release is ready")


def build(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Worker entry: ``{"model": folder, "workload": file, "spec": {...}, "rows": n}`` -> the two paths."""
    spec = ReleaseSpec.model_validate(payload.get("spec", {}))
    model, workload = Path(payload["model"]), Path(payload["workload"])
    write_release(model, spec, progress)
    rows = write_workload(workload, int(payload.get("rows", WORKLOAD_ROWS)), spec.seed)
    return {"model": str(model), "workload": str(workload), "rows": rows}


if MERGED_VOCABULARY + len(SPECIAL_TOKENS) > ReleaseSpec().shape.vocabulary:
    raise AssertionError("the model's vocabulary is smaller than the tokenizer's")
