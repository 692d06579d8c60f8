"""Tokenizer files and chat templates: the same text gives the same ids and the same prompt."""

import json
from collections.abc import Mapping
from typing import Any

from checks.references.checkpoints.folder import VOCABULARIES, Checkpoint, json_object
from checks.references.checkpoints.header import Unreadable
from checks.verdict import Place, Problem

PROBES = (
    "The quick brown fox jumps over the lazy dog. 0123456789 3.14159 1,000,000",
    "  leading, double  and trailing spaces \n\n\ttabs\r\n",
    "def f(x):\n    return x**2  # naïve café — “quotes” … ½ ﬁ",
    "日本語のテキスト、中文分词，한국어 텍스트, العربية, हिन्दी, ไทย",
    "🙂👩‍👩‍👧‍👦 e\u0301 \u200b\ufeff \U0001f1e9\U0001f1ea",
    "don't we'll I'VE they'Re HTTPServer camelCase snake_case <|user|> <think> </s> [INST]",
    "",
)
"""Texts that the usual splitters, normalizers and byte fallbacks treat differently."""

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
SETTINGS = (
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "clean_up_tokenization_spaces",
    "do_lower_case",
    "legacy",
    "padding_side",
    "truncation_side",
    "model_max_length",
    "split_special_tokens",
)
"""Fields of tokenizer_config.json that change ids or lengths; the others name classes, paths and files."""

_SECTIONS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")


def compare_tokenizers(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str]]:
    """Compare vocabularies by content and by encoding probes, then settings and special tokens.

    Raises `Unreadable` for a file of either side that cannot be read.
    """
    problems, notes = _compare_vocabularies(original, export)
    left, right = _settings(original), _settings(export)
    for name in SPECIAL:
        if left.get(name) != right.get(name):
            problems.append(_differs("tokenizer_config.json", name, left.get(name), right.get(name)))
    only_one = []
    for name in SETTINGS:
        if name in left and name in right:
            if left[name] != right[name]:
                problems.append(_differs("tokenizer_config.json", name, left[name], right[name]))
        elif name in left or name in right:
            only_one.append(name)
    if only_one:
        notes.append(f"tokenizer_config.json: in one of the two only: {', '.join(only_one)}")
    return problems, notes


def _compare_vocabularies(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str]]:
    name = next((name for name in VOCABULARIES if name in original.documents), None)
    if name is None:
        return [], []
    if name not in export.documents:
        message = f"{name} is missing from the export"
        return [Problem(code="file-missing", message=message, place=Place(file=name))], []
    if original.documents[name] == export.documents[name]:
        return [], []
    if name != "tokenizer.json":
        message = f"{name} differs from the release's"
        return [Problem(code="tokenizer-differs", message=message, place=Place(file=name))], []
    left, right = (json_object(name, side.documents[name]) for side in (original, export))
    problems = [
        _differs(name, section, left.get(section), right.get(section))
        for section in _SECTIONS
        if _meaning(section, left.get(section)) != _meaning(section, right.get(section))
    ]
    notes = [
        f"{name}: {section} differs; it is set again at every call"
        for section in ("truncation", "padding")
        if left.get(section) != right.get(section)
    ]
    return problems + _compare_probes(original.documents[name], export.documents[name]), notes


def _meaning(section: str, value: Any) -> Any:
    """One spelling for what is written in two: merges as strings or pairs, absent as null or default."""
    if section != "model" or not isinstance(value, dict):
        return _without_idle_flags(section, value)
    model = {key: item for key, item in value.items() if item not in (None, False, "")}
    merges = value.get("merges")
    if isinstance(merges, list):
        model["merges"] = [m if isinstance(m, str) else " ".join(map(str, m)) for m in merges]
    return model


def _without_idle_flags(section: str, value: Any) -> Any:
    """Without the flags of a ByteLevel step that touch no id and no text there.

    Offsets alone follow ``trim_offsets``; decoding follows none of the flags (tokenizers, pre_tokenizers and
    decoders ``byte_level``).
    """
    if isinstance(value, list):
        return [_without_idle_flags(section, item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "ByteLevel":
        kept = ("type", "add_prefix_space", "use_regex") if section == "pre_tokenizer" else ("type",)
        return {name: value[name] for name in kept if name in value}
    return {name: _without_idle_flags(section, item) for name, item in value.items()}


def _compare_probes(left: bytes, right: bytes) -> list[Problem]:
    from tokenizers import Tokenizer

    sides = []
    for raw in (left, right):
        try:
            side = Tokenizer.from_str(raw.decode("utf-8"))
        except Exception as error:
            raise Unreadable("tokenizer.json", f"cannot be loaded: {str(error)[:200]}") from error
        side.no_truncation()
        side.no_padding()
        sides.append(side)
    for number, probe in enumerate(PROBES):
        for special in (False, True):
            wanted, found = (side.encode(probe, add_special_tokens=special).ids for side in sides)
            if wanted != found:
                token = next((i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), None)
                return [
                    Problem(
                        code="tokenizer-differs",
                        message=f"probe text {number} gives other ids",
                        place=Place(file="tokenizer.json", token=token),
                        expected=str(wanted[:20]),
                        found=str(found[:20]),
                    )
                ]
    return []


def _settings(side: Checkpoint) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, special tokens as text."""
    settings: dict[str, Any] = dict(side.json("special_tokens_map.json") or {})
    settings.update(side.json("tokenizer_config.json") or {})
    for name in SPECIAL:
        value = settings.get(name)
        if isinstance(value, Mapping):
            settings[name] = value.get("content")
    return settings


def _differs(file: str, field: str, a: Any, b: Any) -> Problem:
    return Problem(
        code="tokenizer-differs",
        message=f"{field} differs from the release's",
        place=Place(file=file, field=field),
        expected=_shown(a),
        found=_shown(b),
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list) and len(value) > 20:
        return f"{len(value)} entries"
    return "absent" if value is None else json.dumps(value, ensure_ascii=False, default=str)[:200]


def chat_templates(side: Checkpoint) -> dict[str, str]:
    """Templates by name (``default`` for the usual one), wherever a release keeps them.

    A file of its own wins over one inside tokenizer_config.json, as in the reference implementation. Jinja
    drops one final newline, so it is no part of the text. Raises `Unreadable`.
    """
    found: dict[str, str] = {}
    inside = (side.json("tokenizer_config.json") or {}).get("chat_template")
    if isinstance(inside, str):
        found["default"] = inside
    elif isinstance(inside, list):
        entries = [entry for entry in inside if isinstance(entry, Mapping)]
        found.update({str(entry.get("name")): str(entry.get("template")) for entry in entries})
    in_json = (side.json("chat_template.json") or {}).get("chat_template")
    if isinstance(in_json, str):
        found["default"] = in_json
    for name, raw in side.documents.items():
        if name == "chat_template.jinja" or name.startswith("additional_chat_templates/"):
            key = "default" if "/" not in name else name.split("/")[1].removesuffix(".jinja")
            try:
                found[key] = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Unreadable(name, "is no UTF-8 text") from error
    return {name: text.removesuffix("\n") for name, text in found.items()}


def compare_chat_templates(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str], int]:
    """Problems, notes, and the number of the release's templates. Raises `Unreadable`."""
    wanted, found = chat_templates(original), chat_templates(export)
    problems = []
    for name, text in wanted.items():
        place = Place(file="chat_template.jinja", field=None if name == "default" else name)
        if name not in found:
            message = f"the export has no chat template{_named(name)}"
            problems.append(Problem(code="template-missing", message=message, place=place))
        elif found[name] != text:
            problems.append(_other_template(name, text, found[name], place))
    extra = sorted(set(found) - set(wanted))
    notes = [f"the export has templates that the release has not: {', '.join(extra[:10])}"] if extra else []
    if extra and not wanted:
        message = "the export has a chat template, the release has none"
        problems.append(
            Problem(code="template-differs", message=message, place=Place(file="chat_template.jinja"))
        )
    return problems, notes, len(wanted)


def _named(name: str) -> str:
    return "" if name == "default" else f" {name!r}"


def _other_template(name: str, wanted: str, found: str, place: Place) -> Problem:
    first = next((i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), None)
    first = min(len(wanted), len(found)) if first is None else first
    line = wanted.count("\n", 0, first) + 1
    return Problem(
        code="template-differs",
        message=f"the chat template{_named(name)} differs from line {line} on",
        place=place,
        expected=repr(wanted[first : first + 80]),
        found=repr(found[first : first + 80]),
    )
