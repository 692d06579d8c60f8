"""A second, separately written recomputation of every check, from raw record files alone.

It shares no judging code with ``checks/``: numpy in float64, the standard library, and for chat templates
jinja2 and tokenizers. What it cannot recompute it answers ``inconclusive``, with the reason, never ``pass``.
"""

import re
from collections.abc import Callable
from pathlib import Path

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute import build, data, export, image, load, optimizer_step
from plumbline_mcp.findings.recompute.reading import Cannot

_RECOMPUTES: dict[str, Callable[[Path, Question], Submission]] = {
    "build": build.recompute,
    "data": data.recompute,
    "export": export.recompute,
    "image": image.recompute,
    "load": load.recompute,
    "optimizer_step": optimizer_step.recompute,
}


_UNFIT = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError, AssertionError, re.error,
)  # fmt: skip
"""What a record that holds other kinds of values than its format says may raise."""


def known() -> tuple[str, ...]:
    """The checks that have a recompute."""
    return tuple(sorted(_RECOMPUTES))


def recompute(folder: Path, question: Question) -> Submission:
    """Answer a question from the files in its folder. Untrusted records never end it with a traceback."""
    found = _RECOMPUTES.get(question.check)
    if found is None:
        return _unanswered(f"there is no recompute of the check {question.check}")
    try:
        return found(folder, question)
    except Cannot as reason:
        return _unanswered(str(reason))
    except _UNFIT as error:
        return _unanswered(f"a record does not fit its format: {type(error).__name__}: {error}")
    except (MemoryError, RecursionError) as error:
        return _unanswered(f"a record asks for too much: {type(error).__name__}")


def _unanswered(reason: str) -> Submission:
    return Submission(outcome="inconclusive", reason=reason[:4000])
