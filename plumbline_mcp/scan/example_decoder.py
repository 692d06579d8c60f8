"""What the embedded decoders share: fields of the configuration, and the tensors around the layers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from plumbline_mcp.scan.example_spec import ReleaseSpec
from plumbline_mcp.scan.example_storage import FP8_BLOCK, StoredTensor, normal
from plumbline_mcp.scan.example_tokenizer import PAD, RETURN, token_ids

Tensors = Iterator[tuple[str, StoredTensor]]

FP8_CONFIG: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
}


def decoder_config(
    spec: ReleaseSpec, own: dict[str, Any], quantization: dict[str, Any] = FP8_CONFIG
) -> dict[str, Any]:
    """``config.json``: the common fields with a family's ``own``, by name, and what its quantization is."""
    shape, ids = spec.shape, token_ids()
    common = {
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|startoftext|>"],
        "eos_token_id": ids[RETURN],
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "pad_token_id": ids[RETURN if spec.pad_is_stop else PAD],
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }
    content = dict(sorted((common | own).items()))
    return content | ({"quantization_config": quantization} if spec.quantized else {})


def decoder_tensors(
    spec: ReleaseSpec, random: np.random.Generator, layer: Callable[[str, int], Tensors]
) -> Tensors:
    """Embedding, layers (``layer`` is given the prefix of their names and their number), norm and head."""
    shape = spec.shape
    yield "model.embed_tokens.weight", normal(random, shape.vocabulary, shape.hidden, scale=0.5)
    for number in range(shape.layers):
        yield from layer(f"model.layers.{number}", number)
    yield "model.norm.weight", normal(random, shape.hidden, scale=0.1, mean=1.0)
    if not spec.tied:
        yield "lm_head.weight", normal(random, shape.vocabulary, shape.hidden, scale=0.1)
