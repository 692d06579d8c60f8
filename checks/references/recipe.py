"""The recipe of a training run under its canonical names, read from the settings that the job was launched
with, never from what the framework built.
"""

import fnmatch
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError

from checks.errors import NotEvaluated
from checks.references.packs import Decay
from checks.verdict import Frozen

OptimizerName = Literal["adamw", "adam", "sgd", "adafactor", "torch-adafactor", "muon"]
Schedule = Literal["constant", "linear", "cosine", "constant_with_warmup"]


class Lora(Frozen):
    """The adapter of a recipe, in the names of ``peft.LoraConfig``."""

    r: int = Field(8, ge=1)
    alpha: float = 8.0
    alpha_pattern: dict[str, float] = {}
    rank_pattern: dict[str, int] = {}
    use_rslora: bool = False
    bias: str = "none"
    modules_to_save: tuple[str, ...] = ()
    target_modules: str | tuple[str, ...] | None = None

    def rank(self, module: str) -> int:
        """The rank of a layer's adapter, by the same patterns as `scaling`."""
        return int(_by_pattern(self.rank_pattern, module, self.r))

    def targets(self, module: str) -> bool | None:
        """Whether ``target_modules`` names a layer (documentation of ``LoraConfig``), None where it is unset.

        A list names ends of names, a text is a regular expression for the whole name. ``all-linear`` names no
        layer by itself: it is every linear layer but the output head.
        """
        if self.target_modules is None:
            return None
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, module) is not None
        return any(module == name or module.endswith(f".{name}") for name in self.target_modules)

    def scaling(self, module: str) -> float:
        """s of W + s BA for a layer: alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA.

        A pattern is a regular expression that matches the whole name or its end after a dot (documentation of
        ``LoraConfig``, ``alpha_pattern`` and ``rank_pattern``).
        """
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        rank = _by_pattern(self.rank_pattern, module, self.r)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


class TrainedSet(Frozen):
    """Which parameters a recipe trains."""

    frozen: tuple[str, ...] = ()
    lora: Lora | None = None

    def trained(self, name: str) -> bool | None:
        """Whether the recipe trains a parameter; None where it does not say."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.frozen):
            return False
        if self.lora is None:
            return True
        if re.search(r"(^|\.)(lora_|modules_to_save\.)", name):
            return True
        if self.lora.bias != "none" and name.endswith("bias"):
            return None
        return False


class Recipe(TrainedSet):
    """What the update is defined by. ``max_grad_norm`` 0: no clipping."""

    optimizer: OptimizerName
    learning_rate: float = Field(ge=0)
    weight_decay: float = 0.0
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    schedule: Schedule = "constant"
    warmup_steps: float = Field(0, ge=0)
    steps: int | None = None
    max_grad_norm: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    accumulation: int = Field(1, ge=1)
    layout: str | None = None
    dtype: str = "float32"
    autocast: str = "none"
    bf16_in_place: bool = False
    stochastic_rounding: bool = False
    kahan: bool = False
    decay: tuple[Decay, ...] = ()

    @property
    def betas(self) -> tuple[float, float]:
        """The moments' decay rates; Adam's defaults (Kingma and Ba 2015) where the recipe names none."""
        return (0.9 if self.beta1 is None else self.beta1, 0.999 if self.beta2 is None else self.beta2)

    def warmup(self, total: int) -> int:
        """Warm-up steps; a number below 1 is a share of all steps, rounded up."""
        if 0 < self.warmup_steps < 1:
            return math.ceil(total * self.warmup_steps)
        return int(self.warmup_steps)

    def decays(self, name: str, module: str | None) -> bool | None:
        """Whether the recipe decays a parameter; None where nothing declares it or its class is unknown."""
        if not self.decay:
            return None if self.weight_decay else True
        if any(re.search(pattern, name.lower()) for rule in self.decay for pattern in rule.excluded):
            return False
        classes = {each for rule in self.decay for each in rule.excluded_modules}
        if not classes:
            return True
        return module not in classes if module else None


_LORA_NAMES = {"lora_alpha": "alpha", "rank": "r"}


RecipeT = TypeVar("RecipeT", bound=TrainedSet)


def read_recipe(settings: Mapping[str, JsonValue], decay: tuple[Decay, ...]) -> Recipe:
    """The recipe that a job's settings state. Raises `NotEvaluated` where they do not state one."""
    return _read(
        Recipe, settings, {"decay": decay}, "launch the procedure train_step with optimizer and learning_rate"
    )


def read_trained_set(settings: Mapping[str, JsonValue]) -> TrainedSet:
    """What the settings of a job train. Raises `NotEvaluated` where they do not fit."""
    return _read(TrainedSet, settings, {}, "give lora and frozen as the pack documents them")


def _read(
    model: type[RecipeT], settings: Mapping[str, JsonValue], more: dict[str, Any], next_step: str
) -> RecipeT:
    known = {name: value for name, value in settings.items() if name in model.model_fields}
    given: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    if isinstance(given.get("lora"), dict):
        lora = {_LORA_NAMES.get(name, name): value for name, value in given["lora"].items()}
        kept = {
            name: value for name, value in lora.items() if name in Lora.model_fields and value is not None
        }
        given["lora"] = kept if lora else None
    try:
        return model.model_validate({**given, **more})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NotEvaluated(
            f"the job's settings state no recipe: {where}: {first['msg']}", next_step
        ) from error
