"""Procedure dry_run: the recipe through the framework's own parser, the model on the meta device.

The binding's ``dry_run(job, recorder, progress)`` trains nothing and holds no weight. It leaves what the
framework made of the recipe in the output folder and returns what stood in for what. What the framework would
refuse before its first step ends the job here: with code 3 and the framework's own sentence.
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
        stand_ins += procedure.binding().dry_run(procedure.job, recorder, procedure.progress)


if __name__ == "__main__":
    main()
