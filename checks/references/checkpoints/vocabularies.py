"""Vocabulary files: equal by what they say, and by what they encode and decode."""

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

STEP = "copy the release's tokenizer files into the export; training does not change them"
_SECTIONS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")


def compare_vocabularies(
    original: Checkpoint, export: Checkpoint
) -> tuple[list[Problem], list[str], list[str]]:
    """Problems, notes, and the names of the files that were compared.

    The first of `VOCABULARIES` that the release has is the one loaders read, so the export has to have it.
    The others are older spellings of it that newer writers leave out: a copy has to say the same, and one
    left out is noted. Raises `Unreadable` for a file of either side that cannot be read.
    """
    held = [name for name in VOCABULARIES if name in original.documents]
    problems, notes, compared = list[Problem](), list[str](), list[str]()
    for name in held:
        if name in export.documents:
            found, said = _compare_file(name, original.documents[name], export.documents[name])
            problems += found
            notes += said
            compared.append(name)
        elif name == held[0]:
            problems.append(missing(name))
        else:
            notes.append(f"{name} is not in the export, so it was not compared; loaders read {held[0]}")
    return problems, notes, compared


def missing(name: str, more: str = "") -> Problem:
    """A tokenizer file that the release has and the export has not; ``more`` says what went with it."""
    message = f"{name} is missing from the export{more}"
    return Problem(code="file-missing", message=message, place=Place(file=name), next_step=STEP)


def differs(file: str, field: str | None, a: Any, b: Any) -> Problem:
    """A field of a tokenizer file, or the whole file, that means something else."""
    what = f"{field} differs" if field else f"{file} differs"
    return Problem(
        code="tokenizer-differs",
        message=f"{what} from the release's",
        place=Place(file=file, field=field),
        expected=_shown(a),
        found=_shown(b),
        next_step=STEP,
    )


def ids_differ(file: str, what: str, wanted: list[int], found: list[int]) -> Problem:
    """A text that two tokenizers encode otherwise, at the first token that differs."""
    pairs = zip(wanted, found, strict=False)
    token = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(found)))
    return Problem(
        code="tokenizer-differs",
        message=f"{what} gives other ids",
        place=Place(file=file, token=token),
        expected=str(wanted[:20]),
        found=str(found[:20]),
        next_step=STEP,
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list) and len(value) > 20:
        return f"{len(value)} entries"
    return "absent" if value is None else json.dumps(value, ensure_ascii=False, default=str)[:200]


def _compare_file(name: str, left: bytes, right: bytes) -> tuple[list[Problem], list[str]]:
    if left == right:
        return [], []
    if name == "tokenizer.json":
        return _compare_fast(left, right)
    same = _content(name, left) == _content(name, right)
    return (
        ([], [f"{name} is written otherwise with the same content"])
        if same
        else (
            [differs(name, None, f"{len(left)} bytes", f"{len(right)} bytes")],
            [],
        )
    )


def _content(name: str, raw: bytes) -> Any:
    """What a vocabulary file says: a JSON mapping, lines after a version comment, else its bytes."""
    if name.endswith(".json"):
        return json_object(name, raw)
    if name.endswith(".txt"):
        lines = raw.decode("utf-8", "surrogateescape").splitlines()
        return lines[1:] if name == "merges.txt" and lines[:1] and lines[0].startswith("#version") else lines
    return raw


def _compare_fast(left_raw: bytes, right_raw: bytes) -> tuple[list[Problem], list[str]]:
    name = "tokenizer.json"
    left, right = json_object(name, left_raw), json_object(name, right_raw)
    problems = [
        differs(name, section, left.get(section), right.get(section))
        for section in _SECTIONS
        if _meaning(section, left.get(section)) != _meaning(section, right.get(section))
    ]
    notes = [
        f"{name}: {section} differs; it is set again at every call"
        for section in ("truncation", "padding")
        if left.get(section) != right.get(section)
    ]
    if not problems and left.get("added_tokens") != right.get("added_tokens"):
        notes.append(f"{name}: added_tokens are listed in another order, with the same ids")
    return problems + _compare_probes(left_raw, right_raw, added=not problems), notes


def _meaning(section: str, value: Any) -> Any:
    """One spelling for what is written in two: merges as strings or pairs, absent as null or default."""
    if section == "added_tokens" and isinstance(value, list):
        return sorted(value, key=lambda token: json.dumps(token, sort_keys=True))
    if section != "model" or not isinstance(value, dict):
        return _without_idle_flags(section, value)
    model = {key: item for key, item in value.items() if item not in (None, False, "")}
    merges = value.get("merges")
    if isinstance(merges, list):
        model["merges"] = [m if isinstance(m, str) else " ".join(map(str, m)) for m in merges]
    return model


def _without_idle_flags(section: str, value: Any) -> Any:
    """Without the flags of a ByteLevel step that touch no id and no text there.

    Only offsets follow ``trim_offsets``, and decoding follows none of the flags (tokenizers, module
    ``byte_level`` of its pre_tokenizers and of its decoders).
    """
    if isinstance(value, list):
        return [_without_idle_flags(section, item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "ByteLevel":
        kept = ("type", "add_prefix_space", "use_regex") if section == "pre_tokenizer" else ("type",)
        return {name: value[name] for name in kept if name in value}
    return {name: _without_idle_flags(section, item) for name, item in value.items()}


def _compare_probes(left: bytes, right: bytes, *, added: bool) -> list[Problem]:
    sides = [_tokenizer(raw) for raw in (left, right)]
    for number, probe in enumerate(PROBES):
        for special in (False, True):
            wanted, found = (side.encode(probe, add_special_tokens=special).ids for side in sides)
            if wanted != found:
                return [ids_differ("tokenizer.json", f"probe text {number}", wanted, found)]
    tokens = [{i: repr(token) for i, token in side.get_added_tokens_decoder().items()} for side in sides]
    if added and tokens[0] != tokens[1]:
        return [differs("tokenizer.json", "added_tokens", tokens[0], tokens[1])]
    return []


def _tokenizer(raw: bytes) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:
        raise Unreadable("tokenizer.json", f"cannot be loaded: {str(error)[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
