"""Tokenizer settings and chat templates: the same text gives the same ids and the same prompt."""

from collections.abc import Mapping
from typing import Any

from checks.references.checkpoints.folder import VOCABULARIES, Checkpoint
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.vocabularies import compare_vocabularies, differs, missing
from checks.verdict import Place, Problem

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Special tokens by role."""

_TOOLS = "tool_use"
"""The template that the reference takes, where it is there, for conversations that offer tools."""
_TEMPLATE_STEP = "copy the release's chat template into the export"
SETTINGS_FILE = "tokenizer_config.json"
_LOADED = "judged by what the reference implementation loads"
_ORIGIN = "where or how the process that saved it had loaded it"
_CALL = "set again at every call"
IGNORED = {
    "chat_template": "a part of its own",
    "tokenizer_class": _LOADED,
    "added_tokens_decoder": _LOADED,
    "additional_special_tokens": _LOADED,
    "extra_special_tokens": _LOADED,
    "model_specific_special_tokens": _LOADED,
    "name_or_path": _ORIGIN,
    "special_tokens_map_file": _ORIGIN,
    "tokenizer_file": _ORIGIN,
    "vocab_file": _ORIGIN,
    "merges_file": _ORIGIN,
    "backend": _ORIGIN,
    "is_local": _ORIGIN,
    "local_files_only": _ORIGIN,
    "files_loaded": _ORIGIN,
    "device_map": _ORIGIN,
    "transformers_version": "the writer's version",
    "max_length": _CALL,
    "stride": _CALL,
    "truncation_strategy": _CALL,
    "pad_to_multiple_of": _CALL,
}
"""Fields of tokenizer_config.json that are not compared as text, with the reason."""


def compare_tokenizers(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str], int]:
    """Compare vocabularies, then settings and special tokens: problems, notes, number of files compared.

    A field that one side leaves out may be its default: it is noted here, and judged by what is loaded
    (`tokenizer_loading`); so is a special token, where both sides load (`left_to_the_class`). Raises
    `Unreadable` for a file of either side that cannot be read.
    """
    problems, notes, compared = compare_vocabularies(original, export)
    if lost := lost_tokenizer(original, export):
        first, *others = lost
        more = f"; {', '.join(others)} with it: the exporter wrote no tokenizer" if others else ""
        return [missing(first, more)], notes, len(compared)
    if SETTINGS_FILE in original.documents and SETTINGS_FILE not in export.documents:
        return [*problems, missing(SETTINGS_FILE)], notes, len(compared)
    left, right = _settings(original), _settings(export)
    names = sorted({*left, *right} - set(IGNORED) - set(SPECIAL))
    both = [name for name in names if name in left and name in right]
    problems += [
        differs(SETTINGS_FILE, name, left.get(name), right.get(name))
        for name in (*SPECIAL, *both)
        if left.get(name) != right.get(name)
    ]
    only_one = [name for name in names if name not in both]
    if only_one:
        notes.append(f"{SETTINGS_FILE}: in one of the two only: {', '.join(only_one[:20])}")
    return problems, notes, len(compared) + (SETTINGS_FILE in original.documents)


def left_to_the_class(original: Checkpoint, export: Checkpoint) -> list[str]:
    """The special tokens that one side alone names: the other leaves them to its tokenizer class."""
    left, right = _settings(original), _settings(export)
    return [name for name in SPECIAL if (left.get(name) is None) != (right.get(name) is None)]


def lost_tokenizer(original: Checkpoint, export: Checkpoint) -> list[str]:
    """The release's tokenizer files where the export has not one of them: one cause, whatever follows."""
    held = [name for name in (*VOCABULARIES, SETTINGS_FILE) if name in original.documents]
    return [] if any(name in export.documents for name in held) else held


def _settings(side: Checkpoint) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, special tokens as text."""
    settings: dict[str, Any] = dict(side.json("special_tokens_map.json") or {})
    settings.update(side.json("tokenizer_config.json") or {})
    for name in SPECIAL:
        value = settings.get(name)
        if isinstance(value, Mapping):
            settings[name] = value.get("content")
    return settings


def chat_templates(side: Checkpoint) -> dict[str, str]:
    """Templates by name (``default`` for the usual one), wherever a release keeps them.

    A file of its own wins over one inside tokenizer_config.json, as in the reference implementation. Jinja
    drops one final newline, so it is no part of the text. Raises `Unreadable`.
    """
    return {name: text for name, _, text in _said_templates(side)}


def _said_templates(side: Checkpoint) -> list[tuple[str, str, str]]:
    """(name, file, text) of each place that states a template; of one name the last wins."""
    found: list[tuple[str, str, str]] = []
    inside = (side.json(SETTINGS_FILE) or {}).get("chat_template")
    if isinstance(inside, str):
        found.append(("default", SETTINGS_FILE, inside))
    elif isinstance(inside, list):
        entries = [entry for entry in inside if isinstance(entry, Mapping)]
        found += [(str(entry.get("name")), SETTINGS_FILE, str(entry.get("template"))) for entry in entries]
    in_json = (side.json("chat_template.json") or {}).get("chat_template")
    if isinstance(in_json, str):
        found.append(("default", "chat_template.json", in_json))
    for name, raw in side.documents.items():
        if name == "chat_template.jinja" or name.startswith("additional_chat_templates/"):
            key = "default" if "/" not in name else name.split("/")[1].removesuffix(".jinja")
            try:
                found.append((key, name, raw.decode("utf-8")))
            except UnicodeDecodeError as error:
                raise Unreadable(name, "is no UTF-8 text") from error
    return [(name, file, text.removesuffix("\n")) for name, file, text in found]


def compare_chat_templates(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str], int]:
    """Problems, notes, and the number of the release's templates. Raises `Unreadable`."""
    wanted, found = chat_templates(original), chat_templates(export)
    problems = []
    for name, text in wanted.items():
        place = Place(file="chat_template.jinja", field=None if name == "default" else name)
        if name not in found:
            message = f"the export has no chat template{_named(name)}"
            problems.append(
                Problem(code="template-missing", message=message, place=place, next_step=_TEMPLATE_STEP)
            )
        elif found[name] != text:
            problems.append(_other_template(name, text, found[name], place))
    extra = sorted(set(found) - set(wanted))
    notes = [f"the export has templates that the release has not: {', '.join(extra[:10])}"] if extra else []
    if extra and not wanted:
        message = "the export has a chat template, the release has none"
        place = Place(file="chat_template.jinja")
        step = "leave the template out, or name the release that it belongs to as the original"
        problems.append(Problem(code="template-differs", message=message, place=place, next_step=step))
    elif _TOOLS in extra and found[_TOOLS] != wanted.get("default"):
        problems.append(_added_for_tools(export))
    problems += _contradictions(original, export)
    return problems, notes, len(wanted)


def _added_for_tools(export: Checkpoint) -> Problem:
    file = next(file for name, file, _ in _said_templates(export) if name == _TOOLS)
    return Problem(
        code="template-differs",
        message=f"the export adds a template {_TOOLS!r}: conversations that offer tools are rendered with it",
        place=Place(file=file, field=_TOOLS),
        next_step="leave this template out: the release renders tools with its usual one",
    )


def _contradictions(original: Checkpoint, export: Checkpoint) -> list[Problem]:
    """A template that is stated twice, with two texts: each loader reads another one."""
    wanted, read, released = chat_templates(original), chat_templates(export), set(_said_templates(original))
    problems = []
    for name, file, text in _said_templates(export):
        if text in (read[name], wanted.get(name)) or (name, file, text) in released:
            continue
        message = f"{file} has another chat template{_named(name)} than the one that is read here"
        problems.append(
            Problem(
                code="template-differs",
                message=f"{message}: loaders that look there alone render with it",
                place=Place(file=file, field=None if name == "default" else name),
                expected=repr(read[name][:80]),
                found=repr(text[:80]),
                next_step="write the template to one place, or the release's text to each",
            )
        )
    return problems


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
        next_step=_TEMPLATE_STEP,
    )
