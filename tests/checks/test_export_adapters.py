"""Merged adapters: W + sBA, what was not merged, and what shows nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.verdict import Caught, Outcome
from tests.checks.export_pairs import SIDE, Tensors, edit_json, edited, export_check, places, write_llama
from tests.checks.verdict_parts import codes, part

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj")
Q = f"{MODULES[0]}.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("adapters") / "base")


def _adapter(folder: Path, *, b_scale: float = 0.3, extra: Tensors | None = None, **config: Any) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(4)
    tensors: Tensors = dict(extra or {})
    for module in MODULES:
        a = torch.randn(4, SIDE, generator=generator) * 0.3
        b = torch.randn(SIDE, 4, generator=generator) * b_scale
        tensors |= {
            f"base_model.model.{module}.lora_A.weight": a,
            f"base_model.model.{module}.lora_B.weight": b,
        }
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def _merged(base: Path, adapter: Path, target: Path, scale: float = 2.0) -> Path:
    """A merge as frameworks do it: the update in float32, cast, added in the base's dtype."""
    stored = load_file(adapter / "adapter_model.safetensors")

    def merge(tensors: Tensors) -> None:
        for module in MODULES:
            a, b = (stored[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
            weight = tensors[f"{module}.weight"]
            tensors[f"{module}.weight"] = weight + ((b @ a) * scale).to(weight.dtype)

    return edited(base, target, merge)


def test_a_right_merge_passes_within_the_derived_bound(base: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter")
    verdict = export_check(base, _merged(base, adapter, tmp_path / "x"), adapter=adapter)
    assert (verdict.outcome, codes(verdict)) == (Outcome.PASS, set())
    assert str(part(verdict, "adapter").coverage) == "2 of 2 adapted tensors"
    measured = next(m for m in part(verdict, "values").measurements if m.rule == "MERGE_ROUNDINGS")
    assert 0 < float(measured.value or 0) <= 1
    caught = {injection.fault: injection.result for injection in verdict.injected}
    assert caught["an unmerged adapter"] is Caught.CAUGHT


def test_an_unmerged_adapter_is_found(base: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter")
    export = edited(base, tmp_path / "x", lambda tensors: None)
    verdict = export_check(base, export, adapter=adapter)
    assert codes(verdict) == {("values", "adapter-unmerged")}
    assert places(verdict, "adapter-unmerged") == {f"{module}.weight" for module in MODULES}


def test_a_wrong_scale_is_found_and_its_ratio_told(base: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter", alpha_pattern={"q_proj": 64})
    verdict = export_check(base, _merged(base, adapter, tmp_path / "x"), adapter=adapter)
    assert (codes(verdict), places(verdict, "values-differ")) == ({("values", "values-differ")}, {Q})
    assert "holds 0.125 times the adapter's update" in verdict.reason


def test_another_tensor_that_changed_is_no_part_of_the_merge(base: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter")
    export = _merged(base, adapter, tmp_path / "x")
    wrong = edited(export, tmp_path / "wrong", lambda tensors: tensors["model.norm.weight"].mul_(2))
    verdict = export_check(base, wrong, adapter=adapter)
    assert places(verdict, "values-differ") == {"model.norm.weight"}


def test_an_adapter_without_effect_shows_nothing(base: Path, tmp_path: Path) -> None:
    for name, scale, says in (("zero", 0.0, "B or A is zero"), ("tiny", 1e-10, "rounding hides the update")):
        adapter = _adapter(tmp_path / name, b_scale=scale)
        verdict = export_check(base, _merged(base, adapter, tmp_path / f"x-{name}"), adapter=adapter)
        assert (verdict.outcome, part(verdict, "adapter").outcome) == (Outcome.NOT_EVALUATED,) * 2
        assert says in part(verdict, "adapter").reason


def test_an_export_that_is_the_adapter_alone_was_not_merged(base: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter")
    verdict = export_check(base, _adapter(tmp_path / "export"), adapter=adapter)
    assert (verdict.outcome, codes(verdict)) == (Outcome.FAIL, {("files", "adapter-unmerged")})


def test_what_cannot_be_merged_is_not_evaluated(base: Path, tmp_path: Path) -> None:
    export = edited(base, tmp_path / "x", lambda tensors: None)
    for number, config in enumerate(({"use_dora": True}, {"target_parameters": ["experts.gate_up_proj"]})):
        verdict = export_check(base, export, adapter=_adapter(tmp_path / str(number), **config))
        assert verdict.outcome is Outcome.NOT_EVALUATED
        assert next(iter(config)) in verdict.reason
    elsewhere = {"base_model.model.vision.proj.weight": torch.ones(2, 2)}
    verdict = export_check(base, export, adapter=_adapter(tmp_path / "elsewhere", extra=elsewhere))
    assert verdict.outcome is Outcome.NOT_EVALUATED


def test_an_adapter_that_makes_tied_tensors_differ_needs_both_written_and_untied(tmp_path: Path) -> None:
    """The fault of released merges: the new embedding is saved, and the head it was tied to is lost."""
    tied = write_llama(tmp_path / "tied", tied=True)
    new = torch.randn(320, SIDE, generator=torch.Generator().manual_seed(9)).to(torch.bfloat16)
    adapter = _adapter(tmp_path / "adapter", extra={f"base_model.model.{EMBEDDING}": new})

    def replace_embedding(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors[EMBEDDING].clone()
        tensors[EMBEDDING] = new

    right = edited(_merged(tied, adapter, tmp_path / "merged"), tmp_path / "right", replace_embedding)
    still_tied = export_check(tied, right, adapter=adapter)
    assert ("config", "field-differs") in codes(still_tied)
    assert {p.place.field for p in part(still_tied, "config").problems} == {"tie_word_embeddings"}
    edit_json(right / "config.json", tie_word_embeddings=False)
    assert export_check(tied, right, adapter=adapter).outcome is Outcome.PASS
    lost = edited(right, tmp_path / "lost", lambda tensors: tensors.pop("lm_head.weight"))
    verdict = export_check(tied, lost, adapter=adapter)
    assert ("names", "tensor-missing") in codes(verdict)
    assert "lm_head.weight" in places(verdict, "tensor-missing")
