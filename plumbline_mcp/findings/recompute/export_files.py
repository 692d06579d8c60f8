"""The small files of an export beside the release's: configurations, tokenizer, chat templates.

Fields are compared in one spelling. A field that one side alone writes is right where the reference
documents that value as the default; where no default is known here, it decides nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from plumbline_mcp.findings.recompute.answer import Flaw, unknown
from plumbline_mcp.findings.recompute.reading import Cannot, place_in, read_json
from plumbline_mcp.findings.recompute.release import document

Json = dict[str, Any]
_ABSENT = "(absent)"
_UNREAD = {"transformers_version", "_name_or_path", "_attn_implementation_autoset", "_from_model_config"}
"""Fields that say how a file came to be."""
_DEFAULTS: Json = {
    "use_cache": True, "output_router_logits": False, "attention_dropout": 0.0, "attention_bias": False,
    "mlp_bias": False, "tie_word_embeddings": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    "pretraining_tp": 1, "return_dict": True, "output_hidden_states": False, "output_attentions": False,
    "is_encoder_decoder": False, "chunk_size_feed_forward": 0, "problem_type": None,
}  # fmt: skip
"""Documented defaults of transformers 5.24.0 (PreTrainedConfig and the configuration of each model)."""
_GENERATION: Json = {
    "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "use_cache": True, "num_beams": 1,
    "max_length": 20, "repetition_penalty": 1.0, "output_attentions": False, "output_hidden_states": False,
}  # fmt: skip
"""Documented defaults of GenerationConfig (main_classes/text_generation)."""
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_SETTINGS_UNREAD = {
    "chat_template", "tokenizer_class", "added_tokens_decoder", "additional_special_tokens",
    "extra_special_tokens", "model_specific_special_tokens", "name_or_path", "special_tokens_map_file",
    "tokenizer_file", "vocab_file", "merges_file", "backend", "is_local", "local_files_only", "files_loaded",
    "device_map", "transformers_version", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of",
}  # fmt: skip
"""Where and how a tokenizer was loaded, what is set at every call, and what tokenizer.json itself says."""
_TEXTS = (
    "A plain sentence, 12,345.678 and some MORE words.", "  spaces   and\n\nlines\t tabs ", "",
    "def f(x): return x**2  # naïve café ½", "日本語 中文 한국어 العربية ไทย", "🙂👩‍👩‍👧‍👦 e\u0301\u200b",
    "we'll don't I'VE <|user|> <think> </s> [INST] <|endoftext|>",
)  # fmt: skip


def file_flaws(original: Path, export: Path, *, coded_dropped: bool, untied: bool) -> Iterator[Flaw]:
    """config, generation_config, tokenizer and chat_template, each with what it lacks."""
    yield from _readable("config", lambda: _config(original, export, coded_dropped, untied))
    yield from _readable("generation_config", lambda: _generation(original, export))
    yield from _readable("tokenizer", lambda: _tokenizer(original, export))
    yield from _readable("chat_template", lambda: _templates(original, export))
    yield from _readable("processor", lambda: _processors(original, export))


def _processors(original: Path, export: Path) -> Iterator[Flaw]:
    """Processors that are lost; settings that differ are not weighed here."""
    files = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
    wanted, found = ([document(side, name) for name in files] for side in (original, export))
    if any(wanted) and not any(found):
        yield _missing("processor", next(name for name, held in zip(files, wanted, strict=True) if held))
    elif any(wanted) and wanted != found:
        yield unknown("processor", "settings-not-compared", "settings of processors are not recomputed here")


def _readable(part: str, judge: Any) -> list[Flaw]:
    try:
        return list(judge())
    except Cannot as reason:
        return [unknown(part, "file-unreadable", str(reason))]


def _missing(part: str, file: str) -> Flaw:
    return Flaw(part, "file-missing", {"file": file})


def _config(original: Path, export: Path, coded_dropped: bool, untied: bool) -> Iterator[Flaw]:
    left, right = document(original, "config.json"), document(export, "config.json")
    if left is None or right is None:
        if left is None:
            yield unknown("config", "no-reference", "the release has no config.json")
        else:
            yield _missing("config", "config.json")
        return
    one, other = _spelled(left), _spelled(right)
    if coded_dropped and one.pop("quantization_config", None) and other.pop("quantization_config", None):
        where = {"file": "config.json", "field": "quantization_config"}
        yield Flaw("config", "field-differs", where, "present", "absent")
    if untied:
        one["tie_word_embeddings"] = False
    if (export / "generation_config.json").exists():
        one.pop("use_cache", None)  # generation follows its own file; a forward call returns the same logits
        other.pop("use_cache", None)
    for old, new in (("torch_dtype", "dtype"), ("rope_theta", "rope_parameters.rope_theta")):
        values = right.get(old), _inside(right, new)
        if None not in values and values[0] != values[1] and values != (left.get(old), _inside(left, new)):
            where = {"file": "config.json", "field": old}
            yield Flaw("config", "field-differs", where, str(values[0])[:200], str(values[1])[:200])
    yield from _fields("config", "config.json", one, other, _DEFAULTS)


def _inside(config: Json, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _spelled(config: Json) -> Json:
    """One spelling: ``dtype`` for ``torch_dtype``, ``rope_parameters`` for theta and scaling apart."""
    found = {name: value for name, value in config.items() if name not in _UNREAD}
    old = found.pop("torch_dtype", None)
    if old is not None and found.get("dtype") is None:
        found["dtype"] = old
    if isinstance(found.get("dtype"), str):
        found["dtype"] = found["dtype"].removeprefix("torch.")
    theta, scaling = found.pop("rope_theta", None), found.pop("rope_scaling", None)
    rope = found.get("rope_parameters")
    if rope is None and (theta is not None or isinstance(scaling, dict)):
        rope = dict(scaling) if isinstance(scaling, dict) else {}
        rope |= {"rope_theta": theta} if theta is not None else {}
    if isinstance(rope, dict):
        rope = dict(rope)
        rope.setdefault("rope_type", rope.pop("type", "default"))
        found["rope_parameters"] = {name: value for name, value in rope.items() if value is not None}
    for name in ("text_config", "vision_config"):
        if isinstance(found.get(name), dict):
            found[name] = _spelled(found[name])
    return found


def _fields(part: str, file: str, left: Json, right: Json, defaults: Json, above: str = "") -> Iterator[Flaw]:
    for name in sorted({*left, *right}):
        one, other = left.get(name, _ABSENT), right.get(name, _ABSENT)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _fields(part, file, one, other, {}, f"{above}{name}.")
        elif not _same(name, one, other):
            where = {"file": file, "field": f"{above}{name}"}
            alone = other if one == _ABSENT else one if other == _ABSENT else None
            known = name in defaults and not above
            both = alone is None and _ABSENT not in (one, other)
            if both or (known and not _same(name, alone, defaults[name])):
                yield Flaw(part, "field-differs", where, _shown(other), _shown(one))
            elif not known and alone is not None:
                yield unknown(part, "field-unknown", f"{above}{name}: no default is known here", **where)


def _same(name: str, one: Any, other: Any) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if name == "eos_token_id" and _ABSENT not in (one, other):
        sides = [set(each if isinstance(each, list) else [each]) for each in (one, other)]
        return sides[0] == sides[1]
    return bool(one == other)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:200]


def _generation(original: Path, export: Path) -> Iterator[Flaw]:
    file = "generation_config.json"
    left, right = document(original, file), document(export, file)
    if left is not None and right is None:
        yield _missing("generation_config", file)
    elif left is None and right is not None:
        config = document(original, "config.json") or {}
        stated = {n: v for n, v in right.items() if n.endswith("_token_id")}
        implied = {name: config.get(name, value) for name, value in stated.items()}
        others = {n: v for n, v in right.items() if n not in stated and n not in _UNREAD}
        yield from _fields("generation_config", file, implied, stated | others, _GENERATION)
    elif left is not None and right is not None:
        yield from _fields("generation_config", file, _spelled(left), _spelled(right), _GENERATION)


def _settings(folder: Path) -> Json:
    found = dict(document(folder, "special_tokens_map.json") or {})
    found |= document(folder, "tokenizer_config.json") or {}
    for name in _ROLES:
        if isinstance(found.get(name), dict):
            found[name] = found[name].get("content")
    return found


def _tokenizer(original: Path, export: Path) -> Iterator[Flaw]:
    held = [n for n in ("tokenizer.json", "tokenizer_config.json") if (original / n).exists()]
    if not held:
        older = [
            p.name for p in original.iterdir() if p.name in ("tokenizer.model", "vocab.json", "vocab.txt")
        ]
        if older:
            yield unknown("tokenizer", "no-reader", f"{older[0]} is not read here")
        return
    lost = [name for name in held if not (export / name).exists()]
    if lost:
        yield _missing("tokenizer", lost[0])
        return
    if "tokenizer.json" in held:
        yield from _vocabulary(original / "tokenizer.json", export / "tokenizer.json")
    left, right = _settings(original), _settings(export)
    for name in sorted({*left, *right} - _SETTINGS_UNREAD):
        one, other = left.get(name), right.get(name)
        where = {"file": "tokenizer_config.json", "field": name}
        both = (name in left) == (name in right) and (one is None) == (other is None)
        if one != other and both:
            yield Flaw("tokenizer", "tokenizer-differs", where, _shown(other), _shown(one))
        elif one != other and name in _ROLES:
            yield unknown("tokenizer", "field-unknown", f"one side leaves {name} to its class", **where)


def _vocabulary(original: Path, export: Path) -> Iterator[Flaw]:
    """The same ids for the same texts, from the same pieces."""
    raws = [read_json(place_in(path.parent, path.name), 2**28) for path in (original, export)]
    sides = [_loaded(raw) for raw in raws]
    words = [side.get_vocab(with_added_tokens=True) for side in sides]
    where: dict[str, Any] = {"file": "tokenizer.json"}
    if words[0] != words[1]:
        yield Flaw("tokenizer", "tokenizer-differs", where | {"field": "model"})
    for section in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model"):
        one, other = (_meaning(raw.get(section)) for raw in raws)
        if one != other:
            yield Flaw("tokenizer", "tokenizer-differs", where | {"field": section})
    for text in _TEXTS:
        for special in (False, True):
            ids = [side.encode(text, add_special_tokens=special).ids for side in sides]
            if ids[0] != ids[1]:
                at = next(
                    (i for i, (a, b) in enumerate(zip(*ids, strict=False)) if a != b), min(map(len, ids))
                )
                yield Flaw(
                    "tokenizer",
                    "tokenizer-differs",
                    where | {"token": at},
                    str(ids[1][:20]),
                    str(ids[0][:20]),
                )
                return


def _loaded(raw: Any) -> Any:
    try:
        tokenizer = Tokenizer.from_str(json.dumps(raw))
    except Exception as error:
        raise Cannot(f"tokenizer.json cannot be loaded: {str(error)[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _meaning(value: Any) -> Any:
    """One spelling of what is written in two: absent, null, false and empty; merges as pairs or texts."""
    if isinstance(value, list):
        return [_meaning(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {n: _meaning(v) for n, v in value.items() if v not in (None, False, "") and n != "trim_offsets"}
    if value.get("type") == "ByteLevel":
        found = {n: v for n, v in found.items() if n in ("type", "add_prefix_space", "use_regex")}
    if isinstance(found.get("merges"), list):
        found["merges"] = [
            each if isinstance(each, str) else " ".join(map(str, each)) for each in found["merges"]
        ]
    return found


def templates_in(folder: Path) -> dict[str, str]:
    """Chat templates by name; a file of its own wins. Raises `Cannot`."""
    found: dict[str, str] = {}
    inside = (document(folder, "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(inside, str):
        found["default"] = inside
    for entry in inside if isinstance(inside, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            found[str(entry.get("name"))] = entry["template"]
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))[:64]
    for path in [folder / "chat_template.jinja", *more]:
        if path.exists():
            name = "default" if path.name == "chat_template.jinja" else path.stem
            found[name] = read_text(place_in(folder, path.relative_to(folder).as_posix()))
    return {name: text.removesuffix("\n") for name, text in found.items()}


def read_text(path: Path, limit: int = 2**20) -> str:
    """A small UTF-8 file. Raises `Cannot`."""
    try:
        raw = path.read_bytes() if path.is_file() and path.stat().st_size <= limit else b"\xff"
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Cannot(f"{path.name} is no UTF-8 text of at most {limit:,} bytes") from error


def _templates(original: Path, export: Path) -> Iterator[Flaw]:
    wanted, found = templates_in(original), templates_in(export)
    for name, text in wanted.items():
        where = {"file": "chat_template.jinja"} | ({} if name == "default" else {"field": name})
        if name not in found:
            yield Flaw("chat_template", "template-missing", where)
        elif found[name] != text:
            yield Flaw("chat_template", "template-differs", where)
    if found and not wanted:
        yield Flaw("chat_template", "template-differs", {"file": "chat_template.jinja"})
    for_tools = found.get("tool_use", wanted.get("default"))
    if wanted and "tool_use" not in wanted and for_tools != wanted.get("default"):
        yield Flaw("chat_template", "template-differs", {"field": "tool_use"})
    older = _beside(original)
    for key, text in _beside(export).items():
        if older.get(key) != text and text not in (found.get(key[1], text), wanted.get(key[1])):
            field = {} if key[1] == "default" else {"field": key[1]}
            yield Flaw("chat_template", "template-differs", {"file": key[0]} | field)


def _beside(folder: Path) -> dict[tuple[str, str], str]:
    """Templates inside JSON files, by file and name: loaders that know no file of its own read them there."""
    texts: dict[tuple[str, str], str] = {}
    for file in ("tokenizer_config.json", "chat_template.json"):
        value = (document(folder, file) or {}).get("chat_template")
        each = [{"name": "default", "template": value}] if isinstance(value, str) else value
        for entry in each if isinstance(each, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                texts[file, str(entry.get("name"))] = entry["template"].removesuffix("\n")
    return texts
