"""Appends records as JSON lines, one file a kind."""

import json
import math
from pathlib import Path


def plain(value: object) -> object:
    """A value that JSON can hold: numbers that are not finite become the strings nan, inf and -inf."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        if all(type(entry) is str for entry in value):
            return value  # names of parameters, by the thousand
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return repr(value)[:200]


def line_of(record: "dict[str, object]") -> str:
    """A record as one line of JSON. Most hold nothing that JSON does not know and are written as they are."""
    try:
        return _ENCODER.encode(record)
    except (TypeError, ValueError):  # a key that is no text; a number that is not finite
        return _ENCODER.encode(plain(record))


_ENCODER = json.JSONEncoder(allow_nan=False, default=plain)


class Journal:
    """The open ``<kind>.jsonl`` files of one rank."""

    def __init__(self, folder: Path) -> None:
        """Files are opened when their first line comes."""
        self._folder = folder
        self._files: "dict[str, object]" = {}
        self._said: "set[str]" = set()

    def write(self, kind: str, record: "dict[str, object]") -> None:
        """Append one line and hand it to the system."""
        file = self._files.get(kind)
        if file is None:
            file = (self._folder / (kind + ".jsonl")).open("a", encoding="utf-8")
            self._files[kind] = file
        file.write(line_of(record) + "\n")
        file.flush()

    def unavailable(self, what: str, why: str) -> None:
        """Say once what this run cannot record, and why."""
        if what not in self._said:
            self._said.add(what)
            self.write("events", {"event": "unavailable", "what": what, "why": why})

    def close(self) -> None:
        """Close every file."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()
