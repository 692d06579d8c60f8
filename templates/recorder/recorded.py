"""The frame of a procedure that the training recorder watches."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from plumbline_recorder.environment_record import write_environment
from plumbline_recorder.procedure import Procedure
from plumbline_recorder.training_recorder import TrainingRecorder


@contextlib.contextmanager
def recorded(run: Path) -> "Iterator[tuple[Procedure, TrainingRecorder, list[str]]]":
    """The procedure of a run folder, its recorder, and a list for what stood in for what.

    The recorder is installed before the framework is imported, so that it sees the model and the optimizer
    being made; what it holds and the environment are written however the procedure ends.
    """
    procedure = Procedure(run)
    recorder = TrainingRecorder(procedure)
    recorder.install()
    stand_ins: "list[str]" = []
    try:
        yield procedure, recorder, stand_ins
    finally:
        recorder.close()
        write_environment(procedure.records, procedure.job["target"]["module"], stand_ins)
