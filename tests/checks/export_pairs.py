"""Tiny releases and exports for the export check, written by the real transformers and safetensors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from checks.check import evaluate
from checks.export import CHECK, ExportInputs
from checks.verdict import Verdict

SIDE = 32
"""Hidden and intermediate size: equal, so that a transposed down projection fits every shape."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"
Tensors = dict[str, torch.Tensor]


def export_check(original: Path, export: Path, **inputs: Any) -> Verdict:
    """The verdict of the check on two folders; whatever it finds says what to do next."""
    verdict = evaluate(CHECK, ExportInputs(original=original, export=export, **inputs))
    assert all(problem.next_step for _, problem in verdict.problems())
    return verdict


def places(verdict: Verdict, code: str) -> set[str | None]:
    """Tensors at which problems of a code lie."""
    return {problem.place.tensor for _, problem in verdict.problems() if problem.code == code}


def _randomized(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(values.to(parameter.dtype))


def _write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the quick brown fox"] * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def write_llama(folder: Path, *, tied: bool = False, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A tiny llama as transformers saves it."""
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=SIDE,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=tied,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config).to(dtype)
    _randomized(model, 0)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def write_gpt_oss_pair(folder: Path) -> tuple[Path, Path]:
    """A tiny gpt-oss in MXFP4 as released, and in bf16 as transformers saves it after dequantizing."""
    config = GptOssConfig(
        vocab_size=320,
        hidden_size=SIDE,
        intermediate_size=SIDE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = GptOssForCausalLM(config).to(torch.bfloat16)
    _randomized(model, 1)
    quantized = _quantized_experts(model)
    export, release = folder / "export", folder / "release"
    model.save_pretrained(export)
    _write_tokenizer(export)
    shutil.copytree(export, release)
    tensors = load_file(release / "model.safetensors")
    for name, value in quantized.items():
        tensors.pop(name.removesuffix("_blocks").removesuffix("_scales"), None)
        tensors[name] = value
    save_file(tensors, release / "model.safetensors", metadata={"format": "pt"})
    edit_json(release / "config.json", quantization_config={"quant_method": "mxfp4"})
    return release, export


def _quantized_experts(model: GptOssForCausalLM) -> Tensors:
    """Random blocks and scales; the reference's own function puts their values into the model."""
    generator = torch.Generator().manual_seed(2)
    found: Tensors = {}
    for index, layer in enumerate(model.model.layers):
        for name, rows in (("gate_up_proj", 2 * SIDE), ("down_proj", SIDE)):
            blocks = torch.randint(0, 256, (4, rows, SIDE // 32, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(118, 124, (4, rows, SIDE // 32), dtype=torch.uint8, generator=generator)
            prefix = f"model.layers.{index}.mlp.experts.{name}"
            found |= {f"{prefix}_blocks": blocks, f"{prefix}_scales": scales}
            with torch.no_grad():
                getattr(layer.mlp.experts, name).copy_(convert_moe_packed_tensors(blocks, scales))
    return found


def edit_json(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; None drops one."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def edited(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a folder whose tensors were changed in place."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, target / "model.safetensors", metadata={"format": "pt"})
    return target
