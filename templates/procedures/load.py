"""Procedure load: the framework loads the release twice into memory that was filled before.

Floats are filled with NaN both times, integers with complementary values, so what a load leaves out shows.
The binding's ``load(job, recorder, progress)`` is one load: it lets the recorder fill, loads as a training
job would, hands over the loaded model and returns what stood in for what.
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
        load = procedure.binding().load
        for number in (1, 2):
            procedure.progress(number - 1, 2, "loading the release, fill %d of 2" % number)
            recorder.begin_load(number)
            stand_ins[:] = load(procedure.job, recorder, number)
        procedure.progress(2, 2, "loaded")


if __name__ == "__main__":
    main()
