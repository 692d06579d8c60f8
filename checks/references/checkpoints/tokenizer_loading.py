"""Both tokenizers as the reference implementation loads them: the class may change what the files say."""

import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.errors import words
from checks.references.checkpoints.folder import VOCABULARIES, Checkpoint
from checks.references.checkpoints.tokenizer_files import SETTINGS_FILE, SPECIAL
from checks.references.checkpoints.vocabularies import PROBES, STEP, differs, ids_differ
from checks.verdict import Outcome, Place, Problem

ATTRIBUTES = (
    "model_max_length",
    "padding_side",
    "truncation_side",
    "split_special_tokens",
    "clean_up_tokenization_spaces",
    "model_input_names",
)
"""Settings of a loaded tokenizer that change ids, lengths, text or what a batch holds."""

_FILES = (*VOCABULARIES, SETTINGS_FILE, "special_tokens_map.json", "added_tokens.json")
_MOST_SPECIALS = 256


@dataclass(frozen=True)
class Behaviour:
    """What a loaded tokenizer does with the probe texts, and what it says about itself.

    ``encoded`` and ``decoded`` hold two entries a text: with special tokens added and kept, and without.
    """

    loaded_as: str
    texts: tuple[str, ...]
    encoded: list[list[int]]
    decoded: list[str]
    special: dict[str, tuple[str | None, int | None]]
    special_ids: list[int]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class LoadedAlike:
    """How two sides compare as loaded. ``roles``: special tokens that both load to the same token and id."""

    problems: list[Problem]
    notes: list[str] = field(default_factory=list)
    roles: frozenset[str] = frozenset()


def compare_loaded(original: Checkpoint, export: Checkpoint) -> LoadedAlike:
    """Compare what the reference makes of the two sides' files. Code of a release's own is never run."""
    wanted = _behaviour(original, None)
    found = _behaviour(export, None if isinstance(wanted, str) else wanted.texts)
    if isinstance(wanted, str):
        return _not_loaded(original, export, wanted)
    if isinstance(found, str):
        message = f"the reference cannot load the export's tokenizer: {found}"
        place = Place(file=SETTINGS_FILE)
        return LoadedAlike([Problem(code="tokenizer-differs", message=message, place=place, next_step=STEP)])
    problems = _texts(wanted, found) + _fields(wanted, found)
    names = [_class_name(side) for side in (original, export)]
    notes = []
    if names[0] != names[1] and not problems:
        notes.append(f"tokenizer_class is {names[1]}, the release has {names[0]}; both load to the same")
    alike = frozenset(name for name in SPECIAL if wanted.special[name] == found.special[name])
    return LoadedAlike(problems, notes, alike)


def _not_loaded(original: Checkpoint, export: Checkpoint, error: str) -> LoadedAlike:
    """A release that the reference does not load leaves only the files: equal bytes are equal in meaning."""
    if all(original.documents.get(name) == export.documents.get(name) for name in _FILES):
        return LoadedAlike([], [f"the files are equal byte for byte; the reference loads neither: {error}"])
    message = f"the reference cannot load the release's tokenizer, and the files are not the same: {error}"
    step = "install what the message asks for beside Plumbline, or copy the release's tokenizer files"
    return LoadedAlike(
        [Problem(code="tokenizer-not-loaded", outcome=Outcome.NOT_EVALUATED, message=message, next_step=step)]
    )


def _behaviour(side: Checkpoint, texts: tuple[str, ...] | None) -> Behaviour | str:
    """Load and probe the tokenizer, offline; a sentence where that cannot be.

    The files are laid into a folder of their own: the reference then sees what was read and bounded here,
    and no name of a folder that it has an exception for.
    """
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(prefix="tokenizer-") as folder:
            for name in (*_FILES, "config.json"):
                if name in side.documents:
                    (Path(folder) / name).write_bytes(side.documents[name])
            return _probed(_loaded(folder), texts)
    except Exception as error:  # noqa: BLE001 - whatever stops the reference from loading it is the finding
        return f"{type(error).__name__}: {words(str(error), 300)}"
    finally:
        logging.getLogger("transformers").setLevel(level)


def _loaded(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _probed(tokenizer: Any, texts: tuple[str, ...] | None) -> Behaviour:
    texts = texts or (*PROBES, *_with_specials(tokenizer))
    encoded, decoded = [], []
    for text in texts:
        for plain in (False, True):
            ids = [int(number) for number in tokenizer.encode(text, add_special_tokens=not plain)]
            encoded.append(ids)
            decoded.append(tokenizer.decode(ids, skip_special_tokens=plain))
    special = {name: getattr(tokenizer, name, None) for name in SPECIAL}
    return Behaviour(
        type(tokenizer).__name__,
        texts,
        encoded,
        decoded,
        {
            name: (token, None if token is None else tokenizer.convert_tokens_to_ids(token))
            for name, token in special.items()
        },
        sorted(set(tokenizer.all_special_ids)),
        {name: getattr(tokenizer, name, None) for name in ATTRIBUTES},
    )


def _with_specials(tokenizer: Any) -> tuple[str, str]:
    """The added tokens between words, with and without spaces: split, stripped and matched otherwise."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values()][:_MOST_SPECIALS]
    return "".join(f"word {token} " for token in added), "".join(f"x{token}y" for token in added)


def _texts(wanted: Behaviour, found: Behaviour) -> list[Problem]:
    for index, (left, right) in enumerate(zip(wanted.encoded, found.encoded, strict=True)):
        if left != right:
            return [
                ids_differ(
                    SETTINGS_FILE, f"loaded as {found.loaded_as}, probe text {index // 2}", left, right
                )
            ]
    for index, (one, other) in enumerate(zip(wanted.decoded, found.decoded, strict=True)):
        if one != other:
            message = f"loaded as {found.loaded_as}, the ids of probe text {index // 2} give another text"
            return [
                Problem(
                    code="tokenizer-differs",
                    message=message,
                    place=Place(file=SETTINGS_FILE),
                    expected=repr(one[:100]),
                    found=repr(other[:100]),
                    next_step=STEP,
                )
            ]
    return []


def _fields(wanted: Behaviour, found: Behaviour) -> list[Problem]:
    roles = [(name, wanted.special[name], found.special[name]) for name in SPECIAL]
    pairs = [*roles, *((name, wanted.attributes[name], found.attributes[name]) for name in ATTRIBUTES)]
    if all(a == b for _, a, b in roles):
        pairs.append(("all_special_ids", wanted.special_ids, found.special_ids))
    return [differs(SETTINGS_FILE, name, a, b) for name, a, b in pairs if a != b]


def _class_name(side: Checkpoint) -> str:
    settings = side.json(SETTINGS_FILE) or {}
    return str(settings.get("tokenizer_class", "absent"))[:60]
