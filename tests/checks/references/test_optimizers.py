"""The formulas of the optimizers, schedules and recipe against torch's and transformers' own code."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.errors import NotEvaluated
from checks.references.checkpoints.formats import FORMATS
from checks.references.optimizers import Given, updated
from checks.references.packs import load_pack
from checks.references.recipe import Lora, Recipe, read_recipe
from checks.references.running_error import Bounded
from checks.references.schedules import learning_rate

RATE, DECAY, SHAPE = 1e-2, 0.1, (24, 36)
Maker = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def transformers_adafactor(values: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(values, lr=RATE, weight_decay=DECAY, scale_parameter=False, relative_step=False)


MADE: dict[str, tuple[dict[str, Any], Maker]] = {
    "adamw": ({}, lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=DECAY)),
    "adamw fused": (
        {"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=DECAY, fused=True),
    ),
    "adamw betas": (
        {"optimizer": "adamw", "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3},
        lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=DECAY, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adam": ({}, lambda p: torch.optim.Adam(p, lr=RATE, weight_decay=DECAY)),
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=DECAY)),
    "sgd momentum": (
        {"optimizer": "sgd", "momentum": 0.9},
        lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=DECAY, momentum=0.9),
    ),
    "sgd nesterov": (
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=DECAY, momentum=0.9, nesterov=True),
    ),
    "adafactor": ({}, transformers_adafactor),
    "torch-adafactor": ({}, lambda p: torch.optim.Adafactor(p, lr=RATE, weight_decay=DECAY)),
    "muon": ({}, lambda p: torch.optim.Muon(p, lr=RATE, weight_decay=DECAY)),
}  # fmt: skip


def numbers(value: torch.Tensor) -> np.ndarray:
    return value.detach().double().numpy().copy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [SHAPE, SHAPE[::-1], (40,)])
@pytest.mark.parametrize("name", MADE)
def test_five_steps_stay_within_the_bound(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    about, make = MADE[name]
    recipe = Recipe(**{"optimizer": name, "learning_rate": RATE, "weight_decay": DECAY, **about})
    if recipe.optimizer == "muon" and len(shape) != 2:
        pytest.skip("torch refuses what is no matrix")
    torch.manual_seed(1)
    parameter = torch.nn.Parameter((torch.randn(shape) * 0.05).to(dtype))
    optimizer = make([parameter])
    fmt = FORMATS["F32" if dtype is torch.float32 else "BF16"]
    for step in range(1, 6):
        parameter.grad = (torch.randn(shape) * 10.0 ** float(torch.randint(-4, 1, ()))).to(dtype)
        held = optimizer.state.get(parameter, {})
        state = {key: numbers(value) for key, value in held.items() if torch.is_tensor(value) and value.ndim}
        before = numbers(parameter)
        wanted = updated(recipe, Given(before, numbers(parameter.grad), state, step, RATE, DECAY, fmt))
        optimizer.step()
        for key, value in wanted.state.items():
            found = numbers(optimizer.state[parameter][key])
            assert (np.abs(found - value.value) <= 2 * value.error + 1e-30).all(), key
        move = wanted.decayed - numbers(parameter)
        place = 3 * fmt.roundoff * np.abs(before)
        if wanted.direction_error is None:
            error = np.abs(move - wanted.move.value)
            assert (error <= 2 * wanted.move.error + place + fmt.roundoff * np.abs(wanted.move.value)).all()
        else:
            size = np.linalg.norm(wanted.move.value)
            error = np.linalg.norm(move - wanted.move.value)
            assert error <= 2 * wanted.direction_error * size + np.linalg.norm(place)


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_float32_arithmetic_stays_within_the_running_bound(values: list[float], kept: float) -> None:
    exact = [Bounded.exact(np.float64(np.float32(value)), 2.0**-24) for value in values]
    single = [np.float32(value) for value in values]
    with np.errstate(all="ignore"):
        left = np.float32(np.float32(kept) * single[0]) + single[1] * single[2]
        found = np.float32(np.sqrt(np.abs(left) + np.float32(1)))
    a, b, c = exact
    bounded = a.scaled(kept).plus(b.times(c))
    whole = Bounded(np.abs(bounded.value), bounded.error, bounded.unit).raised(1.0).root()
    assert abs(float(found) - float(whole.value)) <= float(whole.error)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_schedules_are_those_of_get_scheduler(schedule: str, warmup: int) -> None:
    total = 11
    recipe = Recipe(optimizer="sgd", learning_rate=0.3, schedule=schedule, warmup_steps=warmup)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    made = transformers.get_scheduler(schedule, optimizer, warmup, total)
    for step in range(1, total + 1):
        assert math.isclose(
            learning_rate(recipe, step, total), optimizer.param_groups[0]["lr"], rel_tol=1e-12, abs_tol=1e-15
        )
        optimizer.step()
        made.step()


def test_the_transformers_pack_declares_what_its_trainer_decays() -> None:
    recipe = read_recipe(
        {"optimizer": "adamw", "learning_rate": 1, "weight_decay": 0.1}, load_pack("transformers").decays()
    )
    assert recipe.decays("model.layers.0.self_attn.q_proj.weight", "Linear") is True
    assert recipe.decays("model.layers.0.self_attn.q_proj.bias", "Linear") is False
    assert recipe.decays("model.layers.0.input_layernorm.weight", "LlamaRMSNorm") is False
    assert recipe.decays("transformer.h.0.ln_1.weight", "LayerNorm") is False
    assert recipe.decays("transformer.h.0.ln_1.weight", None) is None


def test_a_job_without_a_recipe_is_not_evaluated() -> None:
    with pytest.raises(NotEvaluated, match="optimizer"):
        read_recipe({"learning_rate": 1e-3}, ())
    with pytest.raises(NotEvaluated, match="schedule"):
        read_recipe({"optimizer": "adamw", "learning_rate": 1e-3, "schedule": "polynomial"}, ())


def test_scalings_follow_the_patterns_of_peft() -> None:
    lora = Lora(r=4, alpha=32, alpha_pattern={"up_proj": 8}, rank_pattern={r"layers\.1\.up_proj": 2})
    assert lora.scaling("model.layers.0.up_proj") == 2.0
    assert lora.scaling("model.layers.1.up_proj") == 4.0
    assert lora.scaling("model.layers.0.down_proj") == 8.0
    assert Lora(r=4, alpha=32, use_rslora=True).scaling("x") == 16.0
