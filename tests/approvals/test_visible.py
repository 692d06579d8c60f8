import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.visible import visible, visible_line

PAYLOADS = {
    "clear screen (CSI)": ("a\x1b[2Jb", "a\\x1b[2Jb"),
    "clipboard write (OSC 52)": ("\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\\x07"),
    "carriage return": ("safe\rfake", "safe\\x0dfake"),
    "8-bit CSI (C1)": ("a\x9b2Jb", "a\\x9b2Jb"),
    "bidirectional override": ("abc\u202edcba", "abc\\u{202e}dcba"),
    "bidirectional isolate": ("\u2066x\u2069", "\\u{2066}x\\u{2069}"),
    "tag characters": ("\U000e0041\U000e0042", "\\u{e0041}\\u{e0042}"),
    "zero width": ("a\u200bb\ufeffc", "a\\u{200b}b\\u{feff}c"),
    "lone surrogate": ("x\udc9by\ud800", "x\\u{dc9b}y\\u{d800}"),
    "private use": ("\ue000", "\\u{e000}"),
    "unassigned": ("\U0003ffff", "\\u{3ffff}"),
    "line separator": ("a\u2028b", "a\\u{2028}b"),
    "soft hyphen": ("a\xadb", "a\\xadb"),
    "null and delete": ("\x00\x7f", "\\x00\\x7f"),
    "variation selector supplement": ("a\U000e0101", "a\\u{e0101}"),
    "Hangul filler": ("a\u3164b", "a\\u{3164}b"),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_a_terminal_obeys_or_a_reader_cannot_see_is_shown_escaped(name: str) -> None:
    raw, shown = PAYLOADS[name]
    assert visible(raw) == shown
    assert visible_line(raw) == shown


def test_ordinary_text_of_any_language_stays() -> None:
    text = "plain [bold red]markup[/], naïve, Ελληνικά, 中文, עברית, emoji 🎉️, tab\t\n, <｜end▁of▁turn｜>"
    assert visible(text) == text


def test_one_line_form_escapes_newline_and_tab() -> None:
    assert visible_line("one\ntwo\tthree") == "one\\x0atwo\\x09three"


def test_a_clipped_text_says_how_much_is_missing() -> None:
    assert visible("a" * 10, limit=4) == "aaaa… [clipped: 6 of 10 characters not shown]"
    assert visible("a" * 4, limit=4) == "aaaa"


def test_the_limit_counts_what_is_shown_and_cuts_no_escape() -> None:
    assert visible("\x1b" * 100, limit=10) == "\\x1b\\x1b… [clipped: 98 of 100 characters not shown]"


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=300))
def test_nothing_unseen_is_left_whatever_comes_in(text: str) -> None:
    shown = visible(text, limit=10_000)
    left = {unicodedata.category(c) for c in shown if c not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    shown.encode()  # lone surrogates could not be encoded
    assert len(visible_line(text, limit=50)) <= 50 + len(" [clipped: 300 of 300 characters not shown]") + 1
