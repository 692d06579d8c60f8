"""What is kept of a text of others."""

import pytest

from checks.errors import words


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("may affect performance", 22, "may affect performance"),
        ("may affect performance", 21, "may affect …"),
        ("a" * 30, 10, "a" * 8 + " …"),
        ("no " + "a" * 30, 10, "no aaaaa …"),
        ("", 10, ""),
    ],
    ids=["fits", "between words", "one word", "one space, early", "empty"],
)
def test_a_long_text_is_cut_between_words(text: str, limit: int, kept: str) -> None:
    assert words(text, limit) == kept
    assert len(kept) <= limit
