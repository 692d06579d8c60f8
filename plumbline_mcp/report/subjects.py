"""What a verdict judged, as its stored inputs say: verdicts on different inputs are on different subjects."""

import json
from pathlib import PurePath

from pydantic import JsonValue

import checks
from checks.check import Inputs
from plumbline_mcp.workspace import StoredVerdict

Facts = tuple[tuple[str, str], ...]

JUDGED = ("rows", "export", "python", "run")
"""The inputs that hold what is judged, of whichever check."""
_AGAINST = {"model": "of", "original": "of", "framework": "for"}
"""The inputs it belongs to, with the word that says so."""
_LONGEST_NAME, _LONGEST_DIGEST = 60, 24


def inputs_of(stored: StoredVerdict) -> Facts:
    """The inputs that were given, by name, without defaults and what the target states already."""
    target, defaults = stored.verdict.target, _defaults(stored.verdict.check)
    given = ((name, value) for name, value in stored.inputs.items() if value != defaults.get(name))
    texts = ((name, input_text(value)) for name, value in given)
    return tuple(
        (f"{name} given" if name in target else name, text)
        for name, text in texts
        if target.get(name) != text
    )


def subject(stored: StoredVerdict) -> tuple[str, ...]:
    """What was judged in a few words: its file or folder, what it belongs to, then each optional input."""
    given = stored.inputs
    judged = [_short(given[name]) for name in JUDGED if name in given]
    belongs = [f"{word} {_short(given[name])}" for name, word in _AGAINST.items() if name in given]
    model = _inputs_model(stored.verdict.check)
    optional = (
        {name for name, field in model.model_fields.items() if not field.is_required()} if model else ()
    )
    defaults = _defaults(stored.verdict.check)
    more = [
        f"{name} {_short(value)}"
        for name, value in given.items()
        if name in optional and name not in {*JUDGED, *_AGAINST} and value != defaults.get(name)
    ]
    return (*judged, *belongs[:1], *more)


def input_text(value: JsonValue) -> str:
    """An input: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: JsonValue) -> str:
    """The name at the end of a path; of an interpreter also its environment, since all are called python."""
    text = input_text(value)
    path = PurePath(text)
    if not path.is_absolute():
        return text
    kept = path.parts[-3:] if path.parent.name == "bin" else path.parts[-1:]
    return "/".join(map(_name, kept))


def _name(part: str) -> str:
    """A name as it is; a digest by its beginning, a very long name by both ends: either may tell it apart."""
    if len(part) > _LONGEST_DIGEST and set(part) <= set("0123456789abcdef"):
        return part[:12] + "…"
    return part if len(part) <= _LONGEST_NAME else f"{part[:20]}…{part[21 - _LONGEST_NAME :]}"


def _inputs_model(check: str) -> type[Inputs] | None:
    known = checks.discover().get(check)
    return known.inputs if known else None


def _defaults(check: str) -> dict[str, JsonValue]:
    """The inputs that have a default, as they are stored (an unknown check has none)."""
    model = _inputs_model(check)
    fields = model.model_fields.items() if model else ()
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }
