"""The official ``tokenizer.json`` read with `tokenizers` itself, never through a framework's tokenizer class.

Rendered chats are tokenised as inference servers do: the text already holds every control token, so none is
added (no second BOS), nothing is cut and nothing is padded.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from checks.errors import BadInput, NotEvaluated
from checks.records.runs import read_json
from checks.rules import MAX_TOKENIZER_BYTES

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SEGMENT_SAFE = {"Sequence", "Split", "ByteLevel", "Digits", "NFC", "NFD", "NFKC", "NFKD", "Replace"}
_SHORT, _TAILS_KEPT = 256, 4096
"""Characters of a text whose tokens are kept, and how many such texts are."""


def _byte_alphabet() -> dict[str, int]:
    """The characters of byte-level vocabularies, each with its byte.

    Printable Latin-1 stands for itself, the other bytes for U+0100 and on, in their order (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


@dataclass(frozen=True)
class StopTokens:
    """The ids that end a generation, and the file that names them."""

    ids: frozenset[int]
    origin: str
    named_by_release: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """Token ids with their [start, end) in characters."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class ReleaseTokenizer:
    """A release's tokenizer with its special tokens. Ids are what a model sees; offsets count characters."""

    def __init__(self, tokenizer: Tokenizer, configuration: Mapping[str, Any], segment_safe: bool) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # A post-processor only adds tokens we do not want and, with trim_offsets, hides leading blanks from
        # offsets.
        tokenizer.post_processor = None
        self.tokenizer = tokenizer
        self.configuration = configuration
        self.segment_safe = segment_safe
        self.added: dict[int, str] = {
            number: str(token.content) for number, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._tails: dict[str, Tail] = {}

    @classmethod
    def load(cls, release: Path) -> "ReleaseTokenizer":
        """Read ``tokenizer.json`` and ``tokenizer_config.json``. Raises `BadInput`, `NotEvaluated`."""
        path = release / "tokenizer.json"
        if not release.is_dir():
            raise BadInput(f"there is no folder {release}", "name the folder of the official release")
        if not path.is_file():
            raise NotEvaluated(
                f"{release} has no tokenizer.json",
                "name the folder of the official release, with its tokenizer",
            )
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise NotEvaluated(f"{path} has {path.stat().st_size} bytes (limit {MAX_TOKENIZER_BYTES})")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise NotEvaluated(f"{path} is no tokenizer: {str(error)[:200]}") from error
        return cls(tokenizer, configuration_of(release), _is_segment_safe(tokenizer))

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """``bos_token``... as a template sees them (strings; absent ones are left out)."""
        named = {name: token_text(self.configuration.get(name)) for name in _SPECIAL_NAMES}
        return {name: text for name, text in named.items() if text}

    def id_of(self, name: str) -> int | None:
        """The id of a named special token, if the release has it."""
        text = self.special_tokens.get(name)
        found: int | None = None if text is None else self.tokenizer.token_to_id(text)
        return found

    @cached_property
    def is_added(self) -> npt.NDArray[np.bool_]:
        """bool[vocabulary]: whether an id is an added (control) token."""
        mask = np.zeros(
            max([self.tokenizer.get_vocab_size(), *(number + 1 for number in self.added)]), dtype=bool
        )
        mask[list(self.added)] = True
        return mask

    def encode(self, texts: list[str]) -> list[Encoding]:
        """Tokenise whole rendered texts; no special token is added."""
        encodings: list[Encoding] = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return encodings

    def tail(self, text: str) -> Tail:
        """The tokens of a text that starts at an added token.

        Short ones are kept: the same few recur for every conversation.
        """
        if text in self._tails:
            return self._tails[text]
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        made = Tail(encoding.ids, encoding.offsets)
        if len(text) <= _SHORT:
            if len(self._tails) > _TAILS_KEPT:
                self._tails.clear()
            self._tails[text] = made
        return made

    def literal_texts(self, ids: Iterable[int]) -> list[str] | None:
        """The texts of added tokens that stand exactly where their text does; None where one may not.

        A token that takes blanks before it, or that is looked for in normalised text, may begin elsewhere.
        """
        texts = [self._literal.get(number, "") for number in sorted(ids)]
        return texts if all(texts) else None

    @cached_property
    def _literal(self) -> dict[int, str]:
        known = self.tokenizer.get_added_tokens_decoder()
        return {
            number: str(token.content)
            for number, token in known.items()
            if not (token.lstrip or token.normalized)
        }

    def control_end(self, text: str, start: int) -> int | None:
        """The end of the first added token that a text holds literally from a character on."""
        for found in self._control_starts.finditer(text, start):
            at = found.start()
            named = next((token for token in self._control_texts if text.startswith(token, at)), None)
            if named:
                return at + len(named)
        return None

    def words(self, number: int) -> str:
        """An id with its text as a reader reads it, e.g. ``264 ' a'``; blanks and controls as escapes.

        Bytes that are no text alone (a part of a character) stand as bytes.
        """
        spelling = self.tokenizer.id_to_token(number) if number >= 0 else None
        if spelling is None:
            return f"{number} ({'negative' if number < 0 else 'not in the vocabulary'})"
        if number in self.added:
            return f"{number} {self.added[number]!r}"
        # A decoder may strip a blank where a text begins, so the token is read behind itself.
        once, twice = (self.tokenizer.decode([number] * n, skip_special_tokens=False) for n in (1, 2))
        text = twice[len(once) :]
        if "\ufffd" not in text:
            return f"{number} {text!r}"
        raw = [_BYTE_OF[character] for character in spelling if character in _BYTE_OF]
        return f"{number} {bytes(raw) if len(raw) == len(spelling) else spelling!r}"

    def control_text(self, text: str) -> str | None:
        """The first added token that a text holds literally (blank ones, which are plain text, aside)."""
        if not self._control_starts.search(text):
            return None
        return next((token for token in self._control_texts if token in text), None)

    @cached_property
    def _control_texts(self) -> list[str]:
        return sorted((token for token in self.added.values() if token.strip()), key=len, reverse=True)

    @cached_property
    def _control_starts(self) -> re.Pattern[str]:
        starts = sorted({re.escape(token[:3]) for token in self._control_texts})
        return re.compile("|".join(starts) or r"(?!)")


def token_text(value: Any) -> str | None:
    """The text of a token as a configuration writes it: a string, or an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def configuration_of(release: Path) -> dict[str, Any]:
    """``tokenizer_config.json`` of a release, over what ``special_tokens_map.json`` names.

    Empty without both.
    """
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = release / name
        value = read_json(path) if path.is_file() else {}
        if isinstance(value, dict):
            found |= {key: item for key, item in value.items() if item is not None}
    return found


def stop_tokens(release: Path, tokenizer: ReleaseTokenizer) -> StopTokens:
    """Ids that end a generation: ``eos_token_id`` of generation_config.json, else the eos token.

    ``eos_token_id`` is a number or a list.
    """
    path = release / "generation_config.json"
    value = read_json(path) if path.is_file() else None
    named = value.get("eos_token_id") if isinstance(value, dict) else None
    ids = [named] if isinstance(named, int) else named if isinstance(named, list) else []
    numbers = frozenset(number for number in ids if isinstance(number, int) and not isinstance(number, bool))
    if numbers:
        return StopTokens(numbers, "generation_config.json", named_by_release=True)
    eos = tokenizer.id_of("eos_token")
    return StopTokens(
        frozenset() if eos is None else frozenset({eos}), "tokenizer_config.json", named_by_release=False
    )


def _is_segment_safe(tokenizer: Tokenizer) -> bool:
    """Whether text between two added tokens is tokenised alike wherever it stands.

    True for byte-level BPE without a prefix space; SentencePiece-like tokenizers treat the first piece
    differently.
    """
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    return all(_safe(json.loads(part.__getstate__())) for part in parts if part is not None)


def _safe(part: Any) -> bool:
    if part.get("type") not in _SEGMENT_SAFE or part.get("add_prefix_space"):
        return False
    return all(_safe(child) for child in [*part.get("normalizers", []), *part.get("pretokenizers", [])])
