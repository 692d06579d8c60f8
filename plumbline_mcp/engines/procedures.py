"""The procedures that ship: what each needs, costs and feeds."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field

import checks
from checks.verdict import Frozen
from plumbline_mcp.errors import UsageError

PROCEDURES = Path(checks.__file__).parent.parent / "templates" / "procedures"


class Procedure(Frozen):
    """A file ``templates/procedures/<name>.toml``."""

    format: Literal[1]
    name: str
    title: str
    script: str
    training: Literal["none", "one step", "run"]
    cost: str
    inputs: tuple[str, ...]
    optional_inputs: tuple[str, ...] = ()
    refusals: bool = Field(False, description="also launches what the pack cites as refused")
    feeds: tuple[str, ...] = Field(description="checks that judge its records")
    time_limit_s: float = Field(gt=0)


def procedures() -> list[str]:
    """Names of the procedures."""
    return sorted(path.stem for path in PROCEDURES.glob("*.toml"))


def load_procedure(name: str) -> Procedure:
    """The procedure of that name. Raises `UsageError`."""
    if name not in procedures():
        raise UsageError(f"there is no procedure {name!r}", f"known: {', '.join(procedures())}")
    return Procedure.model_validate(tomllib.loads((PROCEDURES / f"{name}.toml").read_text(encoding="utf-8")))
