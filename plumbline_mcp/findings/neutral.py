"""Puts neutral names in the place of paths and ids while files are copied.

Text and the JSON header of a safetensors file are rewritten; tensors never are. A file of another kind that
holds such a name cannot be rewritten without breaking it: it is left out, and that is said.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from checks.verdict import Frozen

_CHUNK = 2**20
_REWRITTEN_UP_TO = 2**28
"""Bytes of the largest text that is rewritten; a larger one that holds a name is left out."""
_HEADER_UP_TO = 100 * 2**20
_FICLONE = 0x40049409
"""The request that makes a copy share its blocks until one side writes (Linux, btrfs and xfs)."""


class LeftOut(Exception):
    """Raised when a file cannot be copied neutrally; the text says why."""


class Changed(LeftOut):
    """Raised when a file is not the one that was sealed."""


class Copied(Frozen):
    """What became of one file."""

    sha256: str
    size: int
    original_sha256: str
    rewritten: bool


class Neutral:
    """The names to hide and what stands for each."""

    def __init__(self, paths: Mapping[str, str], ids: Mapping[str, str] | None = None) -> None:
        spelled = {_json(path): name for path, name in paths.items()} | dict(paths)
        self._names = {name.encode(): neutral.encode() for name, neutral in spelled.items()}
        whole = {name.encode(): neutral.encode() for name, neutral in (ids or {}).items()}
        self._names |= whole
        ends = [_path(name) for name in _longest(set(self._names) - set(whole))]
        ends += [rb"(?<![A-Za-z0-9_-])%s(?![A-Za-z0-9_-])" % re.escape(name) for name in _longest(whole)]
        self._pattern = re.compile(b"|".join(ends) or rb"(?!)")
        self._longest = max((len(name) for name in self._names), default=0) + 1

    def text(self, text: str) -> str:
        """A text with the neutral names."""
        return self._rewritten(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def copy(self, source: Path, target: Path, expected: str | None = None) -> Copied:
        """Copy a regular file; ``expected`` is the digest that it has to have.

        Raises `LeftOut`: no plain file, another digest, or a name in it that cannot be rewritten.
        """
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LeftOut("it is no plain file")
            digest, size, named = self._looked(descriptor)
            if expected is not None and digest != expected:
                raise Changed("it is not the file that was sealed")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not named:
                _clone(descriptor, target)
                return Copied(sha256=digest, size=size, original_sha256=digest, rewritten=False)
            content = self._neutral(descriptor, size)
        finally:
            os.close(descriptor)
        target.write_bytes(content)
        neutral = hashlib.sha256(content).hexdigest()
        return Copied(sha256=neutral, size=len(content), original_sha256=digest, rewritten=True)

    def _looked(self, descriptor: int) -> tuple[str, int, bool]:
        """Digest, size, and whether a name is in it; read once."""
        digest, size, named, rest = hashlib.sha256(), 0, False, b""
        while chunk := os.read(descriptor, _CHUNK):
            digest.update(chunk)
            size += len(chunk)
            named = named or self._holds(rest + chunk)
            rest = (rest + chunk)[-self._longest :]
        return digest.hexdigest(), size, named

    def _holds(self, piece: bytes) -> bool:
        """Whether a name is in a piece. A plain search first: the pattern is many times slower."""
        return any(name in piece for name in self._names) and self._pattern.search(piece) is not None

    def _neutral(self, descriptor: int, size: int) -> bytes:
        if size > _REWRITTEN_UP_TO:
            raise LeftOut(f"it holds a path or an id and is larger than {_REWRITTEN_UP_TO} bytes")
        content = os.pread(descriptor, size, 0)
        header = _header(content)
        if header is not None:
            return self._safetensors(content, *header)
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LeftOut("it holds a path or an id and is no text") from error
        return self._rewritten(content)

    def _safetensors(self, content: bytes, end: int, header: dict[str, object]) -> bytes:
        """The file with another metadata text; offsets count from the header's end, so tensors stay."""
        if self._holds(content[end:]):
            raise LeftOut("a tensor in it holds a path or an id")
        text = self._rewritten(content[8:end].rstrip(b" "))
        if json.loads(text).keys() != header.keys():
            raise LeftOut("a tensor's name holds a path or an id")
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + content[end:]

    def _rewritten(self, content: bytes) -> bytes:
        return self._pattern.sub(lambda met: self._names[met[0]], content)


def _path(name: bytes) -> bytes:
    """A path where it ends: `/a/run` is not a part of `/a/runner`."""
    return re.escape(name) + rb"(?![A-Za-z0-9_-])"


def _longest(names: Iterable[bytes]) -> list[bytes]:
    return sorted(names, key=lambda name: (-len(name), name))


def _json(text: str) -> str:
    """A text as it stands inside a JSON string."""
    return json.dumps(text)[1:-1]


def _header(content: bytes) -> tuple[int, dict[str, object]] | None:
    """Where the header of a safetensors file ends, and its JSON; None for another file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 10 or not 2 <= length <= min(_HEADER_UP_TO, len(content) - 8) or content[8:9] != b"{":
        return None
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        return None
    return (8 + length, header) if isinstance(header, dict) else None


def _clone(descriptor: int, target: Path) -> None:
    """Copy by sharing blocks where the file system can, else byte by byte."""
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.ioctl(made, _FICLONE, descriptor)
        except OSError:
            offset = 0
            while chunk := os.pread(descriptor, _CHUNK, offset):
                os.write(made, chunk)
                offset += len(chunk)
    finally:
        os.close(made)
