"""Compares the byte code that an interpreter would run with its source, inside that interpreter.

Python runs a cached ``.pyc`` in place of its source when a header says so, and a header is easily copied. So
the judged interpreter compiles each source anew and its code objects are compared; none of them is run.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

import checks
from checks.check import Progress
from checks.errors import CheckError
from checks.records.probe import answer_of
from checks.rules import BYTECODE_BATCH, BYTECODE_WORKERS
from checks.verdict import Frozen

PROBE = Path(checks.__file__).parent.parent / "templates" / "recorder" / "probe_bytecode.py"


class Differing(Frozen):
    """Cached byte code that would run and that is not what its source compiles to."""

    file: str
    source: str
    what: Literal["instructions", "names or constants"]


class _Answer(Frozen):
    """What the probe says of one batch of sources."""

    format: Literal[1]
    compared: int
    differing: tuple[Differing, ...] = ()


class Bytecode(Frozen):
    """The byte code of a framework beside its sources."""

    compared: int = 0
    differing: tuple[Differing, ...] = ()
    unread: tuple[str, ...] = ()
    """Why batches of sources could not be compared."""


def compare_bytecode(python: Path, sources: Sequence[str], progress: Progress) -> Bytecode:
    """Compare the caches of ``sources`` (absolute paths) in batches, each in an interpreter of its own.

    Byte code that takes the interpreter down takes its batch only.
    """
    batches = [sources[first : first + BYTECODE_BATCH] for first in range(0, len(sources), BYTECODE_BATCH)]
    done, answers, unread = 0, [], []
    with ThreadPoolExecutor(min(os.cpu_count() or 1, BYTECODE_WORKERS)) as pool:
        for batch, answer in zip(
            batches, pool.map(lambda batch: _compared(python, batch), batches), strict=True
        ):
            done += len(batch)
            progress(done, len(sources), "comparing byte code with its source, file")
            if isinstance(answer, str):
                unread.append(f"{len(batch)} files from {batch[0]}: {answer}")
            else:
                answers.append(answer)
    return Bytecode(
        compared=sum(answer.compared for answer in answers),
        differing=tuple(found for answer in answers for found in answer.differing),
        unread=tuple(unread),
    )


def _compared(python: Path, batch: Sequence[str]) -> _Answer | str:
    """One batch; a sentence when the interpreter gave no answer."""
    try:
        return _Answer.model_validate_json(answer_of(python, PROBE, {"sources": list(batch)}))
    except CheckError as error:
        return error.message
    except ValidationError as error:
        return f"answered in an unknown form: {error.errors()[0]['msg']}"
