"""Pages of docs/ that are generated: each module here with ``build() -> {path: text}``; ``python -m
tests.docs``.
"""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Build = Callable[[], dict[str, str]]


def builders() -> dict[str, Build]:
    """The ``build`` function of every module, by name. A page whose sources are absent builds as ``{}``."""
    modules = {
        module.name: importlib.import_module(f"tests.docs.{module.name}")
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("__")
    }
    return {name: module.build for name, module in modules.items() if hasattr(module, "build")}
