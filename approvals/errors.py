"""What the approvals refuse. One class: every refusal is foreseen, says what does not hold and what to do."""


class Refused(Exception):
    """Raised when a request, decision, key, policy or use is not accepted.

    ``message`` is one sentence with the value met; ``next_step`` what would be accepted.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
