"""Records what a job ran in: interpreter, distributions, torch build, allow-listed variables, stand-ins."""

import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "LANG",
    "OMP_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_OFFLINE",
    "TZ",
)
"""The only variables that are recorded: others may hold secrets."""


def distributions() -> "list[dict[str, str]]":
    """Name, version and place of every distribution; of two with one name, the first on the path counts."""
    found: "dict[str, dict[str, str]]" = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            key = name.lower().replace("_", "-").replace(".", "-")
            place = str(distribution.locate_file(""))
            found.setdefault(key, {"name": name, "version": distribution.version or "", "location": place})
    return [found[key] for key in sorted(found)]


def torch_build() -> "dict[str, str | None] | None":
    """Version and build of torch when the job imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {
        "version": str(torch.__version__),
        "git_version": getattr(torch.version, "git_version", None),
        "cuda": getattr(torch.version, "cuda", None),
    }


def write_environment(folder: Path, module: str, stand_ins: "list[str]") -> None:
    """Write ``environment.json``, by rename."""
    code = sys.modules.get(module)
    record = {
        "format": 1,
        "interpreter": {
            "executable": sys.executable,
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "platform": platform.platform(),
        "framework": {
            "module": module,
            "version": str(getattr(code, "__version__", "")),
            "file": str(getattr(code, "__file__", "") or ""),
        },
        "torch": torch_build(),
        "distributions": distributions(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "stand_ins": stand_ins,
    }
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "environment.json.part"
    temporary.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    temporary.replace(folder / "environment.json")
