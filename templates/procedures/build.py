"""Procedure build: the model that training would start with, recorded before anything is trained.

The binding's ``build(job, recorder, progress)`` loads the release as a training job does, freezes and adapts
it by the recipe, lets the framework place it on its ranks, hands it to the recorder and returns what stood in
for what. The first rank then launches what the pack cites as refused, each in a process of its own.
"""

import sys
from pathlib import Path

HOOKS = Path(__file__).absolute().parent
sys.path.append(str(HOOKS))
sys.dont_write_bytecode, WRITE = True, sys.dont_write_bytecode  # nothing is written beside the hooks

from plumbline_recorder.recorded import recorded  # noqa: E402 - after the path is set
from plumbline_recorder.refusals import attempt, launch_all  # noqa: E402 - as above

sys.dont_write_bytecode = WRITE


def main() -> None:
    """Run the procedure."""
    if len(sys.argv) > 1:  # --refusal NUMBER: one of the launches below
        attempt(HOOKS.parent, int(sys.argv[2]))
        return
    with recorded(HOOKS.parent) as (procedure, recorder, stand_ins):
        stand_ins += procedure.binding().build(procedure.job, recorder, procedure.progress)
        if procedure.rank == 0:
            launch_all(procedure, __file__)


if __name__ == "__main__":
    main()
