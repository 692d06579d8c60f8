"""Procedures train_step and first_run: the recipe's first optimizer steps, recorded.

The binding's ``train(job, recorder, progress)`` trains and returns what stood in for what. The settings say
which steps are recorded in full: some of a train_step, none of a first_run.
"""

import sys
from pathlib import Path

HOOKS = Path(__file__).absolute().parent
sys.path.append(str(HOOKS))
sys.dont_write_bytecode, WRITE = True, sys.dont_write_bytecode  # nothing is written beside the hooks

from plumbline_recorder.recorded import recorded  # noqa: E402 - after the path is set

sys.dont_write_bytecode = WRITE


def main() -> None:
    """Run the procedure."""
    with recorded(HOOKS.parent) as (procedure, recorder, stand_ins):
        stand_ins += procedure.binding().train(procedure.job, recorder, procedure.progress)


if __name__ == "__main__":
    main()
