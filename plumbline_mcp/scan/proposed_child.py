"""The confined side of a proposed check: ``python -I -B -m plumbline_mcp.scan.proposed_child FOLDER``.

Its files are held when it starts (landlock or bubblewrap). It sets the limits, gives up every system call
that a judge does not need, makes sure of that, and only then loads the check's file. What comes out is the
word of that file and nothing more: whoever reads it (`plumbline_mcp.scan.proposed_running`) marks it so.
"""

import importlib.util
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from checks.check import Check, evaluate
from checks.errors import CheckError
from plumbline_mcp.engines.confinement import system_calls

REQUEST = "request.json"
CHECK = "check.py"
SCRATCH = "scratch"
NOT_HELD = 77
"""Exit code: the confinement does not hold, so nothing was loaded."""


def main() -> None:
    """Judge as the request in the folder says; one line of JSON on what was standard output."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            _limit(request["limits"])
            system_calls.refuse()
            _make_sure(folder, request["protected"])
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(NOT_HELD)
        answers.write(json.dumps(_answer(folder / CHECK, request)) + "\n")


def _answer(file: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        check = _load(file)
        inputs = check.inputs.model_validate(request["inputs"])
        verdict = evaluate(check, inputs)
        return {"verdict": verdict.model_dump(mode="json")}
    except CheckError as error:
        return {"problem": f"{error.message}. {error.next_step}"}
    except Exception as error:  # noqa: BLE001 - whatever an unknown file raises is its own problem, and is said
        return {"problem": f"{type(error).__name__}: {error}"}


def _load(file: Path) -> Check[Any, Any]:
    spec = importlib.util.spec_from_file_location("proposed_check", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["proposed_check"] = module  # pydantic looks a class's module up by its name
    spec.loader.exec_module(module)
    check = getattr(module, "CHECK", None)
    if not isinstance(check, Check):
        raise TypeError("the file defines no CHECK, an instance of checks.check.Check")
    return check


def _limit(limits: dict[str, int]) -> None:
    for name, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (value, value))


def _make_sure(folder: Path, protected: list[str]) -> None:
    """Raise `OSError` unless processes, network, writing outside and the protected files are refused."""
    attempts: dict[str, Callable[[], object]] = {
        "start processes": _fork,
        "use the network": socket.socket,
        "write outside": lambda: (folder / "outside").write_bytes(b""),
        **{f"read {path}": partial(open, path, "rb") for path in protected},
    }
    for what, attempt in attempts.items():
        if not _refused(attempt):
            raise OSError(f"the check could {what}")


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


if __name__ == "__main__":
    main()
