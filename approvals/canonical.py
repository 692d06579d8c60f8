"""One spelling for each JSON value, so that what is signed, hashed and compared is the same bytes."""

import hashlib
import json


def canonical(value: object) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 (64 hexadecimal digits) of the canonical JSON of a value."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()
