"""The checks: one file each, found by walking this package. They judge records against references."""

import importlib
import pkgutil
from typing import Any

from checks.check import Check


def discover() -> dict[str, Check[Any, Any]]:
    """Every check by name, in the order of the training lifecycle, then by name.

    A module directly in this package is a check when it defines ``CHECK``.
    """
    found = (
        getattr(importlib.import_module(f"checks.{module.name}"), "CHECK", None)
        for module in pkgutil.iter_modules(__path__)
        if not module.ispkg
    )
    checks: list[Check[Any, Any]] = [check for check in found if check is not None]
    return {check.name: check for check in sorted(checks, key=lambda check: (check.order, check.name))}
