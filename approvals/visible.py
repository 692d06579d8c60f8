"""The one escaper for text that a job, a repository, a checkpoint, a log or an agent wrote.

Terminals obey control sequences (clear the screen, write the clipboard, retitle the window), people do not
see bidirectional overrides, zero-width and tag characters, and language models read the latter. They are
escaped, never deleted: the reader must see that they were there. A text that held a backslash and an escape
in letters looks the same as the character itself; whoever has to tell them apart reads the raw bytes.
"""

import unicodedata

DEFAULT_LIMIT = 4000
"""Characters shown of one text, about 1,000 tokens."""

_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

# Invisible although their category says letter, mark or symbol (Unicode: Default_Ignorable_Code_Point,
# and the blank braille pattern). U+FE0E and U+FE0F only choose between text and emoji style and are common.
_INVISIBLE = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0}
    | set(range(0xFE00, 0xFE0E))
    | set(range(0xE0100, 0xE01F0))
)


def visible(text: str, limit: int = DEFAULT_LIMIT) -> str:
    r"""Text that shows every character it holds, clipped to ``limit`` characters with a marker.

    Newline and tab stay; every other control, format, surrogate, private, unassigned, separator or
    invisible character becomes ``\\x1b`` or ``\\u{202e}``.
    """
    return _shown(text, limit, kept="\n\t")


def visible_line(text: str, limit: int = 200) -> str:
    """Like `visible`, on one line: for table cells, titles and messages."""
    return _shown(text, limit, kept="")


def _shown(text: str, limit: int, kept: str) -> str:
    pieces: list[str] = []
    length = 0
    for index, character in enumerate(text):
        piece = character if character in kept else _escaped(character)
        length += len(piece)
        if length > limit:
            return "".join(pieces) + f"… [clipped: {len(text) - index} of {len(text)} characters not shown]"
        pieces.append(piece)
    return "".join(pieces)


def _escaped(character: str) -> str:
    if " " <= character <= "~":
        return character
    code = ord(character)
    if unicodedata.category(character) not in _ESCAPED_CATEGORIES and code not in _INVISIBLE:
        return character
    return f"\\u{{{code:x}}}" if code > 0xFF else f"\\x{code:02x}"
