"""Procedure dry_run: the recipe through the framework's own parser, the model on the meta device.

The binding's ``dry_run(job, recorder, progress)`` trains nothing and holds no weight. It leaves what the
framework made of the recipe in the output folder and returns what stood in for what.
"""

import sys
from pathlib import Path

HOOKS = Path(__file__).absolute().parent
sys.path.append(str(HOOKS))
sys.dont_write_bytecode, WRITE = True, sys.dont_write_bytecode  # nothing is written beside the hooks

from plumbline_recorder.environment_record import write_environment  # noqa: E402 - after the path is set
from plumbline_recorder.procedure import Procedure  # noqa: E402
from plumbline_recorder.training_recorder import TrainingRecorder  # noqa: E402

sys.dont_write_bytecode = WRITE


def main() -> None:
    """Run the procedure."""
    procedure = Procedure(HOOKS.parent)
    stand_ins: "list[str]" = []
    recorder = TrainingRecorder(procedure)
    recorder.install()
    try:
        stand_ins = procedure.binding().dry_run(procedure.job, recorder, procedure.progress)
    finally:
        recorder.close()
        write_environment(procedure.records, procedure.job["target"]["module"], stand_ins)


if __name__ == "__main__":
    main()
