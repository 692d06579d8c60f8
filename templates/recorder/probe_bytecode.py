"""Compares cached byte code with its source: which ``.pyc`` would run, and is it what the source compiles to?

Given to ``python -I -`` on standard input behind a line that sets ``sys.argv``: ``{"sources": [path, ...]}``.

Runs inside the judged interpreter: standard library only, Python 3.9 and up. It compiles the sources and runs
neither them nor the byte code. Prints one line: a mark, then JSON.
"""

import importlib.util
import json
import marshal
import os
import sys
import types
import warnings
from pathlib import Path

MARK = "plumbline-probe "
LEVELS = (0, 1, 2)
"""The optimisation levels of Python; each has a cache of its own (PEP 488)."""
SHAPE = (
    "co_name",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_names",
)
"""What the text of a function decides, whichever release of the interpreter compiled it."""
BODY = ("co_code", "co_stacksize", "co_exceptiontable")
"""What the compiler decides: a bug-fix release may change it and keep the magic number. Positions of lines
and columns are left out: an option of the interpreter drops columns, and no result depends on them."""
SAME, BODY_DIFFERS, SHAPE_DIFFERS = 0, 1, 2
KINDS = {BODY_DIFFERS: "instructions", SHAPE_DIFFERS: "names or constants"}


def main() -> None:
    """Answer the one request."""
    warnings.simplefilter("ignore")  # the sources' own syntax warnings
    compared, differing = 0, []
    for source in json.loads(sys.argv[1])["sources"]:
        for level in LEVELS:
            cached = Path(importlib.util.cache_from_source(source, optimization=level or ""))
            code = code_that_runs(cached, Path(source))
            if code is not None:
                compared += 1
                found = difference(code, Path(source), level)
                if found:
                    differing.append({"file": str(cached), "source": source, "what": KINDS[found]})
    print(MARK + json.dumps({"format": 1, "compared": compared, "differing": differing}))


def code_that_runs(cached: Path, source: Path) -> "bytes | None":
    """The marshalled code of a cache that an import would take (PEP 552); None when it would compile anew."""
    if not (cached.is_file() and source.is_file()):
        return None
    content = cached.read_bytes()
    flags = int.from_bytes(content[4:8], "little")
    if len(content) < 16 or content[:4] != importlib.util.MAGIC_NUMBER or flags & ~0b11:
        return None
    if flags & 0b1:
        taken = not flags & 0b10 or content[8:16] == importlib.util.source_hash(source.read_bytes())
    else:
        about = os.stat(source)  # noqa: PTH116 - as the import system does
        stamp = (int(about.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
        taken = content[8:16] == stamp + (about.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    return content[16:] if taken else None


def difference(code: bytes, source: Path, level: int) -> int:
    """How cached code departs from what the source compiles to here."""
    try:
        cached = marshal.loads(code)  # noqa: S302 - makes code objects and runs none, as an import would
    except (EOFError, ValueError, TypeError):
        return SAME  # an import fails with the same error: it runs nothing else than its source
    try:
        compiled = compile(source.read_bytes(), str(source), "exec", dont_inherit=True, optimize=level)
    except (SyntaxError, ValueError):
        return SHAPE_DIFFERS  # no code can have been made from it
    return compared_values(compiled, cached)


def compared_values(ours: object, theirs: object) -> int:
    """The worst difference of two code objects or constants; the type counts, for 1 == 1.0 == True."""
    if type(ours) is not type(theirs):
        return SHAPE_DIFFERS
    if isinstance(ours, types.CodeType):
        return compared_code(ours, theirs)
    if isinstance(ours, tuple):
        if len(ours) != len(theirs):
            return SHAPE_DIFFERS
        return max((compared_values(a, b) for a, b in zip(ours, theirs)), default=SAME)  # noqa: B905 - Python 3.9
    if isinstance(ours, frozenset):  # its order changes from process to process
        return SAME if sorted(map(repr, ours)) == sorted(map(repr, theirs)) else SHAPE_DIFFERS
    return SAME if repr(ours) == repr(theirs) else SHAPE_DIFFERS  # repr tells -0.0 from 0.0, and nan is nan


def compared_code(ours: "types.CodeType", theirs: "types.CodeType") -> int:
    """The worst difference of two code objects."""
    if any(getattr(ours, name) != getattr(theirs, name) for name in SHAPE):
        return SHAPE_DIFFERS
    found = compared_values(ours.co_consts, theirs.co_consts)
    if found == SAME and any(getattr(ours, name, None) != getattr(theirs, name, None) for name in BODY):
        return BODY_DIFFERS
    return found


if __name__ == "__main__":
    main()
