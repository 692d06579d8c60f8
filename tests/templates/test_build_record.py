"""What the recorder writes of a built model is what the model holds, and fits the record schema."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from checks.records.built_models import BuiltLine, RefusalLine
from tests.templates.test_recorder import fits, module, recorder

__all__ = ["recorder"]


def lines_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The lines of built.jsonl as they are written, each fitting the schema and its reader."""
    journal = module("journal")
    found = [json.loads(journal.line_of(line)) for line in module("build_record").built_lines(model)]
    for line in found:
        fits("built_line", line)
        BuiltLine.model_validate(line)
    return found


@pytest.fixture
def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config)


def test_modules_are_recorded_with_what_they_hold(recorder: Path, llama: LlamaForCausalLM) -> None:
    llama.train()
    llama.model.layers[1].input_layernorm.eval()
    llama.model.layers[0].input_layernorm.variance_epsilon = 0.5
    llama.config.rms_norm_eps = 0.25
    model, *modules = lines_of(llama)
    assert (model["class"], model["training"]) == ("LlamaForCausalLM", True)
    assert model["config"]["rms_norm_eps"] == 0.25
    by_name = {line["name"]: line for line in modules}
    assert list(by_name) == [name for name, _ in llama.named_modules()]
    assert by_name["model.layers.0.input_layernorm"]["values"] == {"variance_epsilon": 0.5}
    assert not by_name["model.layers.1.input_layernorm"]["training"]
    assert by_name["model.layers.0.self_attn"]["values"]["scaling"] == 8**-0.5
    assert by_name["model.layers.0.self_attn.q_proj"]["linear"]
    assert by_name["model.layers.0.mlp.act_fn"]["class"] == "SiLUActivation"


def test_what_is_not_plain_is_left_out_and_functions_are_named(recorder: Path) -> None:
    part = torch.nn.Module()
    part.act, part.limit, part.rates, part.secret = torch.nn.functional.silu, float("inf"), (1, 2.5), object()
    part._hidden, part.nothing = 3, None
    _, line = lines_of(part)
    assert line["values"] == {"act": "silu", "limit": "inf", "rates": [1, 2.5], "nothing": None}


def test_an_adapter_is_recorded_by_its_own_shape_and_factor(recorder: Path) -> None:
    part = torch.nn.Module()
    part.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(8, 4, bias=False)})
    part.scaling, part.lora_alpha, part.active_adapters = {"default": 2.0}, {"default": 16}, ["default"]
    assert lines_of(part)[1]["adapters"] == [
        {"adapter": "default", "rank": 4, "alpha": 16, "scaling": 2.0, "active": True, "merged": False}
    ]


def test_a_model_without_a_configuration_says_so(recorder: Path) -> None:
    assert lines_of(torch.nn.Linear(2, 2))[0]["config"] is None


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; print('one\\ntwo\\n', file=sys.stderr); sys.exit(3)", 3, "two"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os, sys; sys.exit('RANK' in os.environ or 'MASTER_PORT' in os.environ)", 0, ""),
    ],
)
def test_a_launch_is_recorded_as_it_ended(
    recorder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int, said: str
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "1")
    (tmp_path / "script.py").write_text(script)
    line = {"name": "a", **module("refusals").launched(str(tmp_path / "script.py"), 0)}
    fits("refusal_line", line)
    assert RefusalLine.model_validate(line) == RefusalLine(name="a", code=code, said=said)


def test_a_launch_that_hangs_is_ended_at_its_limit(
    recorder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = module("refusals")
    monkeypatch.setattr(refusals, "LIMIT_S", 2.0)
    (tmp_path / "script.py").write_text(
        "import sys, time\nprint('waits', file=sys.stderr)\nsys.stderr.flush()\ntime.sleep(60)\n"
    )
    assert refusals.launched(str(tmp_path / "script.py"), 0)["timed_out"]
