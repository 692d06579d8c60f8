"""What can be asked for, and what cannot."""

import hashlib
import json
from typing import Any

import pytest
from pydantic import ValidationError

from approvals.canonical import canonical, digest
from approvals.statement import MAX_CONTENT, Request, as_stored, stored_request
from tests.approvals.reviewers import request


def test_canonical_json_has_one_spelling() -> None:
    assert canonical({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"\\u00e9"]}'
    assert digest({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_a_request_is_digested_whole_and_its_content_apart() -> None:
    asked = request()
    assert asked.sha256 == hashlib.sha256(as_stored(asked).encode()).hexdigest()
    assert asked.content_sha256 == digest(json.loads(canonical(asked.content)))
    assert request(title="another").content_sha256 == asked.content_sha256
    assert request(title="another").sha256 != asked.sha256
    assert stored_request(as_stored(asked)) == asked


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "changed",
    [
        {"title": ""},
        {"title": "x" * 201},
        {"content": "x" * MAX_CONTENT},
        {"content": float("nan")},
        {"content": {"a": object()}},
        {"content": "\ud800"},
        {"subjects": {"model": "abc"}},
        {"requester": "a,b"},
        {"requester": "*"},
        {"requester": "-x"},
        {"requester": ""},
        {"under": "task-0001"},
        {"node_millihours": -1},
        {"attempts": 0},
        {"attempts": 101},
        {"uses": ("A" * 64,)},
        {"uses": ("a" * 64, "a" * 64)},
        {"more": 1},
        {"action": "everything"},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_what_cannot_be_asked(changed: dict[str, Any]) -> None:
    values = request().model_dump() | changed
    with pytest.raises(ValidationError):
        Request.model_validate(values)


@pytest.mark.parametrize("depth", [300, 5000, 100_000])
def test_content_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(ValidationError):
        Request.model_validate(request().model_dump() | {"content": nested(depth)})
