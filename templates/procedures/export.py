"""Procedure export: the framework loads the release and saves it, without training.

The binding's ``export(job, output, progress)`` writes the framework's export into ``output`` and returns
what stood in for what.
"""

import sys
from pathlib import Path

HOOKS = Path(__file__).absolute().parent
sys.path.append(str(HOOKS))
sys.dont_write_bytecode, WRITE = True, sys.dont_write_bytecode  # nothing is written beside the hooks

from plumbline_recorder.environment_record import write_environment  # noqa: E402 - after the path is set
from plumbline_recorder.procedure import Procedure  # noqa: E402

sys.dont_write_bytecode = WRITE


def main() -> None:
    """Run the procedure."""
    procedure = Procedure(HOOKS.parent)
    stand_ins: "list[str]" = []
    try:
        stand_ins = procedure.binding().export(procedure.job, str(procedure.output), procedure.progress)
    finally:
        write_environment(procedure.records, procedure.job["target"]["module"], stand_ins)


if __name__ == "__main__":
    main()
