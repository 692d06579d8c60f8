"""A checkpoint folder: shards by the index, tensors by name, small files. Every path is confined."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.references.checkpoints.header import Header, Unreadable, open_regular, read_header
from checks.references.checkpoints.tensors import FileSource, Tensor

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_INDEX = 100_000_000
_MAX_DOCUMENT = 16 * 2**20
_MAX_VOCABULARY = 96 * 2**20
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
"""Files that hold a vocabulary; the first that a release has is the one that loaders read."""
DOCUMENTS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "adapter_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_MORE_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True)
class Shard:
    """One weight file: its name in the folder, where it lies, its header."""

    name: str
    path: Path
    header: Header


@dataclass(frozen=True)
class Checkpoint:
    """A release or an export as read from disk, or an overlay of one.

    ``tensors`` by raw name; ``documents`` the bytes of the small files by name relative to the folder;
    ``strays`` the names of safetensors files that hold none of the tensors.
    """

    path: Path
    tensors: dict[str, Tensor] = field(repr=False)
    documents: dict[str, bytes] = field(repr=False)
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    strays: tuple[str, ...] = ()

    def json(self, name: str) -> dict[str, Any] | None:
        """A document parsed as a JSON object, None where it is absent. Raises `Unreadable`."""
        if name not in self.documents:
            return None
        return json_object(name, self.documents[name])

    @property
    def indexed(self) -> bool:
        """Whether an index says which files hold the weights; else one file of a fixed name does."""
        return [shard.name for shard in self.shards] != [SINGLE]

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def json_object(name: str, raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises `Unreadable`."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unreadable(name, f"is no JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise Unreadable(name, f"is a JSON {type(value).__name__}, not an object")
    return value


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers and small files of a checkpoint folder. Raises `Unreadable`, `FileNotFoundError`.

    `FileNotFoundError` means that the folder holds no safetensors weights at all.
    """
    names, index = _weight_files(folder)
    shards = tuple(_shard(folder, name) for name in names)
    strays = tuple(sorted({path.name for path in folder.glob("*.safetensors")} - set(names)))
    return Checkpoint(folder, _tensors(shards, index), read_documents(folder), shards, strays)


def open_weights(folder: Path, name: str) -> Checkpoint:
    """Read one named weight file and the small files beside it (an adapter). Raises as `open_checkpoint`."""
    if not _exists(folder / name):
        raise FileNotFoundError(f"{folder} has no {name}")
    shards = (_shard(folder, name),)
    return Checkpoint(folder, _tensors(shards, None), read_documents(folder), shards)


def read_documents(folder: Path) -> dict[str, bytes]:
    """The bytes of every known small file that is there. Raises `Unreadable` (too large, a link outside)."""
    found = {}
    for name in (*DOCUMENTS, *VOCABULARIES, *_additional_templates(folder)):
        if _exists(folder / name):
            limit = _MAX_VOCABULARY if name in VOCABULARIES else _MAX_DOCUMENT
            found[name] = _bounded(confined(folder, name), name, limit)
    return found


def confined(folder: Path, name: str) -> Path:
    """The real path of a file named inside a folder. Raises `Unreadable` for every way out of the folder.

    A link is followed only to a file below the folder itself, or, for a snapshot of the model cache
    (``snapshots/<commit>/``), into that model's ``blobs``.
    """
    parts = name.split("/")
    if not name or "\\" in name or "\0" in name or Path(name).is_absolute() or {"", ".", ".."} & set(parts):
        raise Unreadable(name[:200], "is no plain path inside the folder")
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    try:
        real = (root / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its links run in a circle"
        raise Unreadable(name[:200], f"cannot be opened: {reason}") from error
    if not any(real.is_relative_to(allowed) for allowed in roots):
        raise Unreadable(name[:200], "is a link that leaves the folder")
    return real


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _additional_templates(folder: Path) -> list[str]:
    more = folder / _MORE_TEMPLATES
    if more.is_symlink() or not more.is_dir():
        return []
    return [f"{_MORE_TEMPLATES}/{path.name}" for path in sorted(more.glob("*.jinja"))[:64]]


def _bounded(path: Path, name: str, limit: int) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Unreadable(name, f"is {size} bytes long; at most {limit} are read")
        return b"".join(iter(lambda: file.read(limit), b""))


def _weight_files(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    if _exists(folder / SINGLE):
        if _exists(folder / INDEX):
            raise Unreadable(INDEX, f"lies beside {SINGLE}: loaders read one of the two and ignore the other")
        return [SINGLE], None
    if _exists(folder / INDEX):
        index = _index(folder)
        return sorted(set(index.values())), index
    others = sorted(
        path.name for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_")
    )
    if others:
        raise Unreadable(
            INDEX, f"is missing beside {', '.join(others[:3])}: loaders find no weights without it"
        )
    raise FileNotFoundError(f"{folder} holds no safetensors weights")


def _index(folder: Path) -> dict[str, str]:
    index = json_object(INDEX, _bounded(confined(folder, INDEX), INDEX, _MAX_INDEX))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Unreadable(INDEX, "has no weight_map")
    if not all(isinstance(file, str) and file.endswith(".safetensors") for file in weight_map.values()):
        wrong = next(
            f for f in weight_map.values() if not (isinstance(f, str) and f.endswith(".safetensors"))
        )
        raise Unreadable(INDEX, f"names the file {str(wrong)[:200]!r}, which is no safetensors file")
    return weight_map


def _shard(folder: Path, name: str) -> Shard:
    path = confined(folder, name)
    try:
        return Shard(name, path, read_header(path))
    except Unreadable as error:
        raise Unreadable(name, error.message) from error


def _tensors(shards: tuple[Shard, ...], index: dict[str, str] | None) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard, entry in _entries(shards):
        if entry.name in tensors:
            raise Unreadable(
                shard.name, f"holds {entry.name[:200]!r}, which {tensors[entry.name].file} holds too"
            )
        source = FileSource(shard.path, entry.begin)
        tensors[entry.name] = Tensor(entry.name, entry.dtype, entry.shape, source, shard.name)
    for name, file in (index or {}).items():
        if name not in tensors or tensors[name].file != file:
            raise Unreadable(INDEX, f"says that {file} holds {name[:200]!r}, but it does not")
    if index is not None and len(tensors) > len(index):
        extra = next(name for name in tensors if name not in index)
        raise Unreadable(INDEX, f"does not name {extra[:200]!r}, which {tensors[extra].file} holds")
    return tensors


def _entries(shards: tuple[Shard, ...]) -> Iterator[tuple[Shard, Any]]:
    for shard in shards:
        for entry in shard.header.entries.values():
            yield shard, entry
