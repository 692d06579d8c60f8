"""The three ways a check can end without judging.

    CheckError
    ├── BadInput        the caller named something unusable (usage error: exit code 3)
    └── CannotJudge
        ├── NotEvaluated    something the check needs is missing
        └── Inconclusive    it ran, and what it saw does not decide

Wrong training is none of these: it is a verdict with outcome ``fail``.
"""


def words(text: str, limit: int) -> str:
    """The beginning of a text of others, at most ``limit`` characters, cut between words where it has any."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 2]
    return f"{kept[: kept.rfind(' ')] if ' ' in kept[limit // 2 :] else kept} …"


class CheckError(Exception):
    """Base: one sentence of what happened with the value met, and the next step."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class BadInput(CheckError):
    """Raised when an argument cannot be used at all: a path that does not exist, an unknown option."""


class CannotJudge(CheckError):
    """Base of the two honest non-answers; never becomes ``pass``."""


class NotEvaluated(CannotJudge):
    """Raised when evidence is missing: ``next_step`` says how to get it."""


class Inconclusive(CannotJudge):
    """Raised when the evidence does not hold or does not decide (a digest differs, a reference disagrees)."""
