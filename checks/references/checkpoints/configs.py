"""config.json and generation_config.json, equal in meaning: as the reference implementation reads them.

Where the files differ as text, both are read by the reference implementation's own configuration class, which
fills in defaults and translates old spellings (``rope_theta`` and ``rope_scaling`` into ``rope_parameters``).
A field that one file leaves out at its default is no difference; it is listed.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.verdict import Outcome, Place, Problem

IGNORED = {
    "transformers_version": "the writer's version",
    "_name_or_path": "where it was loaded from",
    "_attn_implementation_autoset": "a setting of the process that saved it",
    "_from_model_config": "how the file came to be",
}
"""Fields without a meaning for the model, with the reason."""

_SETS = ("eos_token_id",)
"""Fields whose list is a set: generation ends at any of the ids (transformers ``EosTokenCriteria``)."""
_CONFIG_STEP = "write this field as the release has it, then export again"

_QUANTIZATION = "quantization_config"
_OWN_CODE = "auto_map"
"""The field by which a release names code of its own; the reference's classes read the rest without it."""
_CACHE = "use_cache"
_CACHE_MEANS = (
    "logits and generated tokens are the same; a forward call returns no key/value cache unless asked"
)
_CACHE_SLOW = ", and generation without a generation_config.json computes earlier tokens again for each one"
"""What ``use_cache`` false changes (tried with transformers 4.57.6 and 5.24.0). The Trainer of transformers
5.24.0 writes it into the model that it trains (``TrainingArguments.use_cache``, default false).
"""
_MEANS = {
    "output_router_logits": "logits and generated tokens are the same, but the model adds its routers' "
    "balance loss to the loss that it returns, so training goes on otherwise (TRL's trainers set it)",
    "router_aux_loss_coef": "logits and generated tokens are the same; where training goes on, the routers' "
    "balance loss weighs otherwise",
}
"""What a difference of these fields changes, and what it leaves alone."""

_UNSET = {
    "do_sample": False,
    "use_cache": True,
    "max_length": 20,
    "min_length": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}
"""What generation takes where generation_config.json is silent (``GenerationConfig``, transformers 5.24.0).

transformers 4 leaves these values out when it saves. Not ``top_k``: where it is left out, transformers keeps
the 50 most probable tokens, serving engines all.
"""
_RENAMED = (("torch_dtype", "dtype"), ("rope_theta", "rope_parameters.rope_theta"))
"""Fields that transformers 5 renamed, old and new; files of both times hold one of the two, or both."""
_INNER = ("text_config", "vision_config")
Json = Mapping[str, Any]


@dataclass
class ConfigResult:
    """Problems and notes of one configuration file."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare_config(
    original: Json,
    export: Json,
    *,
    quantization_dropped: bool = False,
    untied: bool = False,
    generates_by_file: bool = False,
) -> ConfigResult:
    """Compare model configurations.

    ``quantization_dropped``: the framework documents that it exports without it. ``untied``: an adapter made
    head and embedding differ, so they are not tied in the export. ``generates_by_file``: the export has a
    generation_config.json, which then says whether generation keeps a cache.
    """
    result = ConfigResult()
    left, right = _plain(original), _plain(export)
    if quantization_dropped and left.pop(_QUANTIZATION, None) is not None:
        if right.pop(_QUANTIZATION, None) is None:
            result.notes.append(f"{_QUANTIZATION} is left out, as the documented export format says")
        else:
            result.problems.append(_still_quantized(export))
    if untied:
        left["tie_word_embeddings"] = False
        result.notes.append(
            "the adapter makes head and embedding differ, so tie_word_embeddings has to be false"
        )
    result.problems.extend(_contradictions(original, export, "config.json"))
    _compare(result, left, right, "config.json", _model_meaning)
    if generates_by_file:
        _allow_cache_setting(result)
    return result


def _still_quantized(export: Json) -> Problem:
    return Problem(
        code="field-differs",
        message=f"{_QUANTIZATION} says that weights are quantised, and the documented format is not",
        place=Place(file="config.json", field=_QUANTIZATION),
        expected="absent",
        found=_shown(export[_QUANTIZATION]),
        next_step=f"leave {_QUANTIZATION} out beside weights that were decoded: engines read them as codes",
    )


def _allow_cache_setting(result: ConfigResult) -> None:
    """A note in the place of a problem: whether a forward call returns its cache changes no result."""
    for problem in [each for each in result.problems if _is_field(each.place.field, _CACHE)]:
        result.problems.remove(problem)
        found = f"config.json: {problem.place.field} is {problem.found}, in the release {problem.expected}"
        result.notes.append(f"{found}: {_CACHE_MEANS}")


def _is_field(path: str | None, name: str) -> bool:
    return path is not None and path.split(".")[-1] == name


def _contradictions(original: Json, export: Json, file: str, prefix: str = "") -> list[Problem]:
    """An old and a new name of one field with two values: each loader reads another one."""
    found = []
    for old_name, new_name in _RENAMED:
        old, new = _at(export, old_name), _at(export, new_name)
        released = _at(original, old_name), _at(original, new_name)
        if old is None or new is None or old == new or released == (old, new):
            continue
        message = f"{prefix}{old_name} is {_shown(old)} and {prefix}{new_name} is {_shown(new)}"
        found.append(
            Problem(
                code="field-differs",
                message=f"{message}: older loaders read the first, newer ones the second",
                place=Place(file=file, field=f"{prefix}{old_name}"),
                expected=_shown(new),
                found=_shown(old),
                next_step="write one of the two names, with the release's value",
            )
        )
    for name in _INNER:
        inner, beside = export.get(name), original.get(name)
        if isinstance(inner, Mapping):
            released_inner = beside if isinstance(beside, Mapping) else {}
            found += _contradictions(released_inner, inner, file, f"{prefix}{name}.")
    return found


def _at(config: Json, path: str) -> Any:
    """A value by dotted path, None where it is absent."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def compare_generation_config(original: Json, export: Json) -> ConfigResult:
    """Compare generation configurations."""
    result = ConfigResult()
    _compare(result, _plain(original), _plain(export), "generation_config.json", _generation_meaning)
    return result


def compare_added_generation_config(config: Json, export: Json) -> ConfigResult | None:
    """Hold a generation config that the release has not against what its config.json implies.

    Judged are the fields that the file states and the token ids, which it takes over from config.json. None
    where the reference implementation does not know the architecture.
    """
    from transformers import GenerationConfig

    made = _model_config(_plain(config))
    if made is None:
        return None
    implied = GenerationConfig.from_model_config(made).to_dict()
    left = {name: value for name, value in implied.items() if name in export or name.endswith("_token_id")}
    result = compare_generation_config(left, export)
    result.notes.append("generation_config.json was added; it is held against what config.json implies")
    return result


def _plain(config: Json) -> dict[str, Any]:
    """Without the ignored fields, and with the one name that transformers 5 writes for the dtype."""
    plain = {name: value for name, value in config.items() if name not in IGNORED}
    old = plain.pop("torch_dtype", None)
    if old is not None and plain.get("dtype") is None:
        plain["dtype"] = old
    for name in _INNER:
        if isinstance(plain.get(name), Mapping):
            plain[name] = _plain(plain[name])
    return plain


def _compare(
    result: ConfigResult,
    left: dict[str, Any],
    right: dict[str, Any],
    file: str,
    meaning: Callable[[dict[str, Any]], dict[str, Any] | None],
) -> None:
    raw = _differences(left, right)
    for name in [name for name in raw if name.split(".")[0] == _OWN_CODE]:
        result.problems.append(_undefined(name, *raw.pop(name), file))
    for name in _SETS:
        if left.get(name) != right.get(name) and _same(left.get(name), right.get(name), name):
            result.notes.append(f"{file}: {name} lists the same ids in another order or form")
    if not raw:
        return
    means_left, means_right = meaning(left), meaning(right)
    if means_left is None or means_right is None:
        result.problems.extend(_undefined(name, *pair, file) for name, pair in raw.items())
        return
    meant = _differences(_plain(means_left), _plain(means_right))
    result.problems.extend(_problem(name, *pair, file) for name, pair in meant.items())
    same = sorted(name for name in raw if not any(_related(name, other) for other in meant))
    if same and (_OWN_CODE in left or _OWN_CODE in right):
        result.problems.append(_read_by_own_code(same, file))
    elif same:
        result.notes.append(f"{file}: written otherwise with the same meaning: {', '.join(same[:20])}")


def _read_by_own_code(names: list[str], file: str) -> Problem:
    """Other spellings beside ``auto_map``: that code may read the release's alone, and it is never run."""
    listed = ", ".join(names[:20])
    return Problem(
        code="field-unknown",
        outcome=Outcome.INCONCLUSIVE,
        message=f"written otherwise: {listed}; the reference reads the same from both, and whether the "
        f"release's own code ({_OWN_CODE}) does is not known, since it is never run",
        place=Place(file=file, field=names[0]),
        next_step="write these fields as the release has them: copy its config.json",
    )


def _related(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")


_ABSENT = object()


def _differences(left: Json, right: Json, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields by dotted path that one side lacks or has otherwise."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*left, *right}):
        a, b = left.get(name, _ABSENT), right.get(name, _ABSENT)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found.update(_differences(a, b, f"{prefix}{name}."))
        elif not _same(a, b, name):
            found[f"{prefix}{name}"] = (a, b)
    return found


def _same(a: Any, b: Any, name: str = "") -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, list) != isinstance(b, list) and _ABSENT not in (a, b):
        a, b = (value if isinstance(value, list) else [value] for value in (a, b))
    if name in _SETS and isinstance(a, list) and isinstance(b, list):
        return all(item in b for item in a) and all(item in a for item in b)
    return bool(a == b)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, default=str)[:200]


def _problem(name: str, a: Any, b: Any, file: str) -> Problem:
    field_name = name.split(".")[-1]
    means = f"{_CACHE_MEANS}{_CACHE_SLOW}" if field_name == _CACHE else _MEANS.get(field_name)
    return Problem(
        code="field-differs",
        message=f"{name} is {_shown(b)}; it has to be {_shown(a)}" + (f": {means}" if means else ""),
        place=Place(file=file, field=name),
        expected=_shown(a),
        found=_shown(b),
        next_step=_CONFIG_STEP,
    )


def _undefined(name: str, a: Any, b: Any, file: str) -> Problem:
    """A difference in a file that the reference implementation cannot read: a new field may be a default."""
    if a is not _ABSENT:
        return _problem(name, a, b, file)
    return Problem(
        code="field-unknown",
        outcome=Outcome.INCONCLUSIVE,
        message=f"{name} = {_shown(b)} was added; the reference implementation cannot say whether by default",
        place=Place(file=file, field=name),
        found=_shown(b),
        next_step="leave the field out, or read in the model's own code what it stands for",
    )


def _model_config(config: dict[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return None
    known = {name: value for name, value in config.items() if name != _OWN_CODE}
    try:
        return CONFIG_MAPPING[kind].from_dict(copy.deepcopy(known))
    except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError):
        return None


def _model_meaning(config: dict[str, Any]) -> dict[str, Any] | None:
    made = _model_config(config)
    if made is None:
        return None
    meaning: dict[str, Any] = json.loads(json.dumps(made.to_dict(), default=str))
    return meaning


def _generation_meaning(config: dict[str, Any]) -> dict[str, Any] | None:
    from transformers import GenerationConfig

    try:
        meaning: dict[str, Any] = GenerationConfig.from_dict(config).to_dict()
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    unset = {name: value for name, value in _UNSET.items() if meaning.get(name) is None}
    return meaning | unset
