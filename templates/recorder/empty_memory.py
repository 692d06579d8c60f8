"""Memory that torch hands out without values is filled while a load runs.

A framework that builds its model without memory leaves nothing to fill before the load: the loader makes
each tensor. What an operation of torch returns, it has written; memory of ``torch.empty`` and its kin may be
left as it was, and where it was used before, it may hold the right values of an earlier copy. Torch fills it
by itself when it is told to, in every thread and below its own operations (``torch.utils.deterministic``,
since torch 2.2): floats with NaN, integers with their largest value.
"""

import torch


class EmptyMemory:
    """Torch's own fill, on from `start` to `stop`; both put back what a job had set."""

    def __init__(self) -> None:
        """The fill is as the job has it."""
        self._switch = getattr(torch.utils, "deterministic", None)
        self._before: "tuple[bool, bool, bool] | None" = None

    def start(self) -> None:
        """Fill from now on, where this torch can. Operations without a deterministic form only warn."""
        if self._switch is None or self._before is not None:
            return
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            warns,
            self._switch.fill_uninitialized_memory,
        )
        if not self._before[0]:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self._switch.fill_uninitialized_memory = True

    def stop(self) -> bool:
        """Put the job's settings back. Returns whether all memory was filled since `start`."""
        if self._before is None:
            return False
        held = torch.are_deterministic_algorithms_enabled() and self._switch.fill_uninitialized_memory
        enabled, warns, fills = self._before
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        self._switch.fill_uninitialized_memory = fills
        self._before = None
        return held
