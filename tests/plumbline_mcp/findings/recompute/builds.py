"""Builds of tiny releases, recorded from models that transformers made: right ones, and wrong ones."""

from pathlib import Path
from typing import Any

import torch

from tests.checks import test_build as cases
from tests.checks.built_runs import BuiltWriter, Change, built, model_of
from tests.checks.export_pairs import write_gpt_oss_pair, write_llama
from tests.plumbline_mcp.findings.recompute import judged
from tests.plumbline_mcp.findings.recompute.judged import Judged

ATTENTION = "model.layers.1.self_attn"
WRONG: dict[str, Change] = {
    "epsilon": cases.sets(cases.NORM, "variance_epsilon", 1e-5),
    "last-norm": cases.sets("model.norm", "variance_epsilon", 1e-3),
    "scaling": cases.sets(ATTENTION, "scaling", 1.0),
    "not-causal": cases.sets(ATTENTION, "is_causal", False),
    "groups": cases.sets(ATTENTION, "num_key_value_groups", 2),
    "dropout": cases.sets(ATTENTION, "attention_dropout", 0.1),
    "rope-type": cases.sets("model.rotary_emb", "rope_type", "linear"),
    "rope-factor": cases.sets("model.rotary_emb", "attention_scaling", 1.5),
    "padding-row": cases.sets("model.embed_tokens", "padding_idx", 3),
    "activation": cases.tanh,
    "configured-epsilon": cases.configures(rms_norm_eps=1e-5),
    "configured-base": cases.configures(rope_parameters={"rope_theta": 5e5}),
    "configured-tie": cases.configures(tie_word_embeddings=True),
    "configured-heads": cases.configures(num_key_value_heads=2),
    "dropped": cases.drops,
    "added": cases.adds,
    "widened": cases.widens,
    "cast": cases.casts,
    "frozen-layer": cases.freezes,
    "rotary-base": cases.turns_base,
    "evaluating": cases.evaluates,
    "stray-adapter": cases.adapts(),
}
ADAPTED: dict[str, Change] = {
    "doubled-factor": cases.adapts(alpha=16.0),
    "other-rank": cases.adapts(rank=8, alpha=16.0),
    "one-layer": cases.adapts(layers=1),
    "one-more": cases.adapts(names=("q_proj", "v_proj")),
}
WRONG_OSS: dict[str, Change] = {
    "windowless": cases.sets("model.layers.0.self_attn", "sliding_window", None),
    "windowed": cases.sets(ATTENTION, "sliding_window", 128),
    "layer-type": cases.sets(ATTENTION, "layer_type", "sliding_attention"),
    "one-expert": cases.sets("model.layers.0.mlp.router", "top_k", 1),
    "swiglu-limit": cases.sets("model.layers.1.mlp.experts", "limit", 6.0),
    "yarn-factor": cases.sets("model.rotary_emb", "attention_scaling", 1.0),
    "configured-window": cases.configures(sliding_window=64),
    "configured-types": cases.configures(layer_types=["full_attention", "full_attention"]),
}
MORE = ("untied", "one-rank", "thawed", "accepted")
RIGHT = ("clean", "two-ranks", "tied", "frozen", "dropped-out", "adapted", "all-adapted", "gpt-oss")
EVERY_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj")


def _unties(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def _drops_out(model: Any) -> None:
    model.config.attention_dropout = 0.25
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.25


def _nothing(model: Any) -> None:
    """A right model."""


def judged_builds(base: Path) -> dict[str, Judged]:
    """Every one of them, judged by the check."""
    found: dict[str, Judged] = {}

    def llama(name: str, change: Change = _nothing, *, tied: bool = False, **how: Any) -> None:
        release = write_llama(base / name / "release", tied=tied)
        found[name] = judged.build_run(built(base / name / "record-1", release, change, **how), release)

    llama("clean")
    llama("two-ranks", ranks=2)
    llama("tied", tied=True)
    llama("untied", _unties, tied=True)
    llama("frozen", cases.freezes, frozen=["model.layers.0.*"])
    llama("thawed", frozen=["model.layers.0.*"])
    llama("dropped-out", _drops_out, dropout=0.25)
    llama("one-rank", cases.sets(cases.NORM, "variance_epsilon", 0.5), ranks=2)
    for name, change in WRONG.items():
        llama(name, change)
    for name, change in {"adapted": cases.adapts(), **ADAPTED}.items():
        llama(name, change, lora=cases.LORA)
    pattern = r".*self_attn\.[qkvo]_proj"
    llama("all-adapted", cases.adapts(names=EVERY_LINEAR), lora={**cases.LORA, "target_modules": pattern})
    for name, change in {"gpt-oss": _nothing, **WRONG_OSS}.items():
        _, release = write_gpt_oss_pair(base / name)
        found[name] = judged.build_run(built(base / name / "record-1", release, change), release)
    found["accepted"] = _accepted(base / "accepted")
    return found


def _accepted(folder: Path) -> Judged:
    """A run whose launch of a refused setting ended well."""
    release = write_llama(folder / "release")
    run = BuiltWriter(folder / "record-1", dtype="bfloat16")
    run.built(model_of(release))
    run.refusals({"name": cases.REFUSED["name"], "code": 0, "timed_out": False, "said": ""})
    return judged.build_run(run.seal(), release)
