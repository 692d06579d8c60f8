"""Procedure rows: the framework's own data pipeline, on the CPU and without training, recorded row by row.

The binding's ``rows(job, writer, progress)`` adds every sequence as it would enter the model to the writer
and returns what stood in for what.
"""

import sys
from pathlib import Path

HOOKS = Path(__file__).absolute().parent
sys.path.append(str(HOOKS))
sys.dont_write_bytecode, WRITE = True, sys.dont_write_bytecode  # nothing is written beside the hooks

from plumbline_recorder.environment_record import write_environment  # noqa: E402 - after the path is set
from plumbline_recorder.procedure import Procedure  # noqa: E402
from plumbline_recorder.rows_writer import RowsWriter  # noqa: E402

sys.dont_write_bytecode = WRITE


def main() -> None:
    """Run the procedure."""
    procedure = Procedure(HOOKS.parent)
    stand_ins: "list[str]" = []
    try:
        binding = procedure.binding()
        with RowsWriter(procedure.records) as writer:
            stand_ins = binding.rows(procedure.job, writer, procedure.progress)
        print("recorded %d sequences" % writer.sequences)
    finally:
        write_environment(procedure.records, procedure.job["target"]["module"], stand_ins)


if __name__ == "__main__":
    main()
