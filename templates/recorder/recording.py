"""What is recorded, where: the settings of one rank's recorder."""

import os
from pathlib import Path

SAMPLE_ELEMENTS = 1 << 20
RECORD_BYTES = 4 << 30


class Recording:
    """One rank's folder and what the job asks to have recorded."""

    def __init__(self, records: Path, settings: "dict[str, object]", rank: int, world_size: int) -> None:
        """``settings``: the job's; the recorder reads its own four."""
        self.records, self.rank, self.world_size = records, rank, world_size
        self.record_steps = frozenset(int(step) for step in settings.get("record_steps") or ())
        self.sample_elements = int(_or(settings.get("sample_elements"), SAMPLE_ELEMENTS))
        self.record_bytes = int(_or(settings.get("record_bytes"), RECORD_BYTES))
        self.label_smoothing = float(settings.get("label_smoothing") or 0.0)


def _or(value: object, default: int) -> object:
    return default if value is None else value


def rank_of_process() -> "tuple[int, int]":
    """Rank and world size of this process, as torchrun or the launch wrapper gave them."""
    rank = os.environ.get("RANK") or os.environ.get("PLUMBLINE_RANK") or "0"
    return int(rank), int(os.environ.get("WORLD_SIZE") or "1")
