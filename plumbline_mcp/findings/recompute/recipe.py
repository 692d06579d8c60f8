"""The recipe of a training from the settings that its job was launched with: what an update is defined by."""

import fnmatch
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plumbline_mcp
from plumbline_mcp.findings.questions import Question
from plumbline_mcp.findings.recompute.reading import Cannot, Record, number, place_in

_PACKS = Path(plumbline_mcp.__file__).parent.parent / "templates" / "frameworks"
_MAX_TOML = 2**20


def pack_folder(folder: Path, question: Question, record: Record | None) -> Path | None:
    """The connection pack that a question names, else the built-in one of the run's framework."""
    if "framework" in question.files:
        return place_in(folder, question.files["framework"])
    asked = question.inputs.get("framework")
    name = asked if isinstance(asked, str) else (record.job.get("framework") if record else None)
    return built_in_pack(name) if isinstance(name, str) and name else None


def built_in_pack(name: str) -> Path:
    """The folder of a built-in pack. Raises `Cannot`."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) and (_PACKS / name).is_dir():
        return _PACKS / name
    raise Cannot(f"there is no built-in pack {name[:60]!r}")


def pack_file(pack: Path | None, name: str) -> dict[str, Any]:
    """A TOML file of a pack, empty where it has none. Raises `Cannot`."""
    if pack is None or not (pack / name).is_file():
        return {}
    if (pack / name).stat().st_size > _MAX_TOML:
        raise Cannot(f"{name} of the connection pack is larger than {_MAX_TOML:,} bytes")
    try:
        return tomllib.loads((pack / name).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Cannot(f"{name} of the connection pack is no TOML: {str(error)[:200]}") from error


@dataclass(frozen=True)
class Recipe:
    """``settings`` of the job; ``undecayed``: patterns and classes that the framework documents."""

    settings: dict[str, Any]
    undecayed: tuple[re.Pattern[str], ...] = ()
    classes: frozenset[str] = frozenset()
    declares: bool = False

    @classmethod
    def of(cls, settings: dict[str, Any], pack: Path | None) -> "Recipe":
        """Read the recipe. Raises `Cannot` where the settings state none."""
        if not isinstance(settings.get("optimizer"), str) or number(settings.get("learning_rate")) is None:
            raise Cannot("the job's settings state no optimizer and learning rate")
        entries = pack_file(pack, "settings.toml").get("decay", [])
        try:
            patterns = [re.compile(str(p)) for entry in entries for p in entry.get("excluded", [])]
            classes = {str(name) for entry in entries for name in entry.get("excluded_modules", [])}
        except (re.error, AttributeError, TypeError) as error:
            raise Cannot(f"settings.toml of the connection pack: {error}") from error
        return cls(settings, tuple(patterns), frozenset(classes), bool(entries))

    def number(self, name: str, default: float = 0.0) -> float:
        """A setting that is a number."""
        found = number(self.settings.get(name))
        return default if found is None else found

    def flag(self, name: str) -> bool:
        """A setting that is true or false."""
        return bool(self.settings.get(name))

    @property
    def optimizer(self) -> str:
        """adamw, adam, sgd, adafactor, torch-adafactor or muon."""
        return str(self.settings["optimizer"])

    @property
    def betas(self) -> tuple[float, float]:
        """Decay rates of Adam's moments (Kingma and Ba 2015 where the recipe names none)."""
        return self.number("beta1", 0.9), self.number("beta2", 0.999)

    @property
    def epsilon(self) -> float:
        """Adam's epsilon."""
        return self.number("epsilon", 1e-8)

    @property
    def lora(self) -> dict[str, Any] | None:
        """The adapter, None where the whole model is trained."""
        found = self.settings.get("lora")
        return found if isinstance(found, dict) and found else None

    def total(self, seen: int) -> int:
        """Steps of the whole run."""
        steps = self.settings.get("steps")
        return steps if type(steps) is int and steps > 0 else seen

    def rate(self, step: int, total: int) -> float:
        """The learning rate of step ``step`` (from 1): transformers documents the schedules' shapes."""
        peak, name = self.number("learning_rate"), str(self.settings.get("schedule") or "constant")
        warm = self.number("warmup_steps")
        rising = math.ceil(total * warm) if 0 < warm < 1 else int(warm)
        done = step - 1
        if name == "constant":
            return peak
        if done < rising:
            return peak * (done / max(1, rising))
        if name == "constant_with_warmup":
            return peak
        share = (done - rising) / max(1, total - rising)
        if name == "linear":
            return peak * max(0.0, 1.0 - share)
        if name == "cosine":
            return peak * max(0.0, 0.5 * (1.0 + math.cos(math.pi * share)))
        raise Cannot(f"the schedule {name[:60]!r} has no closed form here")

    def trains(self, name: str) -> bool | None:
        """Whether the recipe trains a parameter; None where it does not say."""
        frozen = self.settings.get("frozen") or []
        if any(isinstance(p, str) and fnmatch.fnmatchcase(name, p) for p in frozen):
            return False
        if self.lora is None or re.search(r"(^|\.)(lora_|modules_to_save\.)", name):
            return True
        return None if self.lora.get("bias", "none") != "none" and name.endswith("bias") else False

    def decays(self, name: str, module: str | None) -> bool | None:
        """Whether a parameter is decayed; None where nothing declares it."""
        if not self.declares:
            return None if self.number("weight_decay") else True
        if any(pattern.search(name.lower()) for pattern in self.undecayed):
            return False
        if not self.classes:
            return True
        return module not in self.classes if module else None

    def adapter_rank(self, module: str) -> int:
        """Rows of a layer's A; 0 without an adapter."""
        lora = self.lora
        if lora is None:
            return 0
        return int(_matched(lora.get("rank_pattern"), module, lora.get("r", lora.get("rank", 8))))

    def adapter_scaling(self, module: str) -> float | None:
        """alpha / r of a layer, alpha / sqrt(r) with rank-stabilised LoRA; None without an adapter."""
        lora = self.lora
        if lora is None:
            return None
        alpha = _matched(lora.get("alpha_pattern"), module, lora.get("alpha", lora.get("lora_alpha", 8.0)))
        rank = self.adapter_rank(module)
        return alpha / (math.sqrt(rank) if lora.get("use_rslora") else rank) if rank > 0 else None


def _matched(patterns: Any, module: str, default: Any) -> float:
    """The value of the first pattern that matches the name's end after a dot (peft's LoraConfig)."""
    for pattern, value in (patterns or {}).items() if isinstance(patterns, dict) else ():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(value)
    return float(default)
