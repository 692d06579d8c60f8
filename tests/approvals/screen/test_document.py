"""The lines that are shown say exactly the request, and nothing that a terminal obeys."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.screen.document import CONTINUED, lines_of, request_lines, shown_digest
from approvals.visible import visible_line
from tests.approvals.reviewers import request
from tests.plumbline_mcp.handmade_verdicts import HOSTILE

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "\\n",
        "\n",
        "\\\n",
        "\\\\n\n\n",
        '"\n"',
        CONTINUED,
        f"\n{CONTINUED}",
        "\\u202e",
        "\u202e",
        "\r\n",
        "\u2028",
    ]
)
_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(_VALUE)
def test_the_digest_of_the_lines_is_that_of_the_request(value: object) -> None:
    asked = request(content=value)
    assert shown_digest(request_lines(asked)) == asked.sha256


@given(_VALUE)
def test_every_character_of_a_line_is_seen(value: object) -> None:
    for line in lines_of(value):  # type: ignore[arg-type]
        assert visible_line(line, 10**6) == line


def test_a_text_of_several_lines_is_read_line_by_line() -> None:
    assert lines_of({"job.sh": "#!/bin/bash\nset -e\necho \\n\n"}) == [
        "{",
        r'  "job.sh": "#!/bin/bash\n',
        r"┊ set -e\n",
        r"┊ echo \\n\n",
        '┊ "',
        "}",
    ]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_deceives_a_reader_is_an_escape_of_json(text: str) -> None:
    shown = "".join(line.removeprefix(CONTINUED) for line in lines_of([text, {text: 1}]))
    assert json.loads(shown) == [text, {text: 1}]
    assert shown.isprintable()


@pytest.mark.parametrize("place", range(3, 40, 7))
def test_another_text_has_another_digest(place: int) -> None:
    asked = request(content={"steps": 100, "text": "one\ntwo"})
    lines = request_lines(asked)
    altered = [line.replace("two", "tw0").replace("100", "101") for line in lines]
    assert shown_digest(altered) != asked.sha256
    line = lines[place % len(lines)]
    with pytest.raises(ValueError):
        shown_digest(
            [*lines[: place % len(lines)], line.replace('"', "", 1) + "}", *lines[place % len(lines) :]]
        )
