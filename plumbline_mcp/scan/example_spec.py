"""What the embedded release is: the default passes every check, the variants serve the fault entries."""

from typing import Literal

from pydantic import Field

from checks.verdict import Frozen


class Shape(Frozen):
    """What decides names and shapes. ``hidden`` and ``intermediate`` are multiples of 32 (a scale block)."""

    hidden: int = 64
    intermediate: int = 64
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 16
    experts: int = 4
    vocabulary: int = 1024


class ReleaseSpec(Frozen):
    """Which release to build."""

    family: Literal["gpt_oss", "llama", "deepseek_v3"] = "gpt_oss"
    quantized: bool = Field(
        True, description="gpt_oss: experts in MXFP4; the others: matrices in block FP8; false: bf16"
    )
    seed: int = 0
    intermediate: int = Field(
        64, description="equal to hidden: a transposed down projection has the right shape; 96: it has not"
    )
    ragged: bool = Field(
        False, description="deepseek_v3: one matrix ends in half a scale block, as in the published models"
    )
    tied: bool = Field(False, description="the output head is the embedding")
    multi_token: bool = Field(False, description="carries tensors that transformers does not build")
    template: Literal["own stop", "next header"] = "own stop"
    pad_is_stop: bool = Field(False, description="padding uses the stop token")
    tokenizer_class: str = "PreTrainedTokenizerFast"
    shards: int = Field(3, ge=1, le=9)

    @property
    def shape(self) -> Shape:
        """The sizes of the model."""
        return Shape(intermediate=self.intermediate)
