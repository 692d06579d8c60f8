"""The settings of processors (images, audio, video) that inference reads beside the tokenizer.

Older writers keep each in a file of its own (``preprocessor_config.json``,
``video_preprocessor_config.json``), newer ones (transformers 5) all of them inside ``processor_config.json``;
both forms mean the same.
"""

from collections.abc import Iterator
from typing import Any

from checks.references.checkpoints.folder import Checkpoint
from checks.verdict import Outcome, Place, Problem

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_SECTIONS = ("image_processor", "feature_extractor", "audio_processor", "video_processor")
_BOOKKEEPING = frozenset({"processor_class", "transformers_version", "auto_map", "_valid_processor_keys"})
"""What writers note of themselves; no input is made from it (``auto_map`` names code, not a value)."""
_STEP = "copy the release's file into the export, or have the exporter save the release's processor"
_MISSING = object()

Sections = dict[str, tuple[str, dict[str, Any]]]
"""Name of a processor to the file that states it and its settings."""


def processors(side: Checkpoint) -> Sections:
    """The settings of every processor of a checkpoint, wherever they are kept. Raises `Unreadable`."""
    found: Sections = {}
    for file in PROCESSOR_FILES[1:]:
        settings = side.json(file)
        if settings is not None:
            found[_kind(file, settings)] = (file, _plain(settings))
    whole = side.json(PROCESSOR_FILES[0])
    if whole is None:
        return found
    inside = {name: whole[name] for name in _SECTIONS if isinstance(whole.get(name), dict)}
    found |= {name: (PROCESSOR_FILES[0], _plain(settings)) for name, settings in inside.items()}
    own = {name: value for name, value in whole.items() if name not in inside}
    return found | ({"processor": (PROCESSOR_FILES[0], _plain(own))} if _plain(own) else {})


def _kind(file: str, settings: dict[str, Any]) -> str:
    if file.startswith("video"):
        return "video_processor"
    audio = "feature_extractor_type" in settings and "image_processor_type" not in settings
    return "feature_extractor" if audio else "image_processor"


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Without bookkeeping, and without null, which is what a field that is left out means."""
    return {name: value for name, value in settings.items() if name not in _BOOKKEEPING and value is not None}


def compare_processors(original: Checkpoint, export: Checkpoint) -> tuple[list[Problem], list[str], int]:
    """Problems, notes and the number of the release's processors. Raises `Unreadable`."""
    wanted, found = processors(original), processors(export)
    problems: list[Problem] = []
    for name, (file, settings) in wanted.items():
        if name in found:
            problems += _differences(settings, *found[name])
        else:
            problems.append(_missing(file, name))
    extra = sorted(set(found) - set(wanted))
    notes = [f"the export has processors that the release has not: {', '.join(extra)}"] if extra else []
    return problems, notes, len(wanted)


def _missing(file: str, name: str) -> Problem:
    return Problem(
        code="file-missing",
        message=f"the export has no {file}: engines make no inputs of the {name} from it",
        place=Place(file=file),
        next_step=_STEP,
    )


def _differences(wanted: dict[str, Any], file: str, found: dict[str, Any]) -> Iterator[Problem]:
    """Another value fails; where one side leaves it to the class, nothing here says what it is."""
    for name in sorted(wanted.keys() | found.keys()):
        left, right = wanted.get(name, _MISSING), found.get(name, _MISSING)
        if left == right or _same_class(name, left, right):
            continue
        silent = "the release" if left is _MISSING else "the export" if right is _MISSING else ""
        yield Problem(
            code="field-unknown" if silent else "field-differs",
            outcome=Outcome.INCONCLUSIVE if silent else Outcome.FAIL,
            message=f"{silent} leaves {name} to its processor's class, and what that takes is not known here"
            if silent
            else f"{name} differs from the release's",
            place=Place(file=file, field=name),
            expected=_shown(left),
            found=_shown(right),
            next_step=_STEP,
        )


def _same_class(name: str, left: Any, right: Any) -> bool:
    """Whether two class names are one processor's, in its slow and its fast form."""
    if not name.endswith("_type") or not isinstance(left, str) or not isinstance(right, str):
        return False
    return left.removesuffix("Fast") == right.removesuffix("Fast")


def _shown(value: Any) -> str:
    return "not set" if value is _MISSING else repr(value)[:80]
