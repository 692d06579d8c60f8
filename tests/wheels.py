"""Tiny wheels and environments, made in milliseconds and without an index."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    metadata: Sequence[str] = (),
) -> Path:
    """Write ``name-version-py3-none-any.whl`` with a correct RECORD into ``folder``."""
    module = name.replace("-", "_")
    contents = dict(files or {f"{module}/__init__.py": f'__version__ = "{version}"\n'})
    information = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
    contents[f"{information}/METADATA"] = (
        "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires)]) + "\n"
    )
    contents[f"{information}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={record_digest(text.encode())},{len(text)}" for path, text in contents.items()]
    contents[f"{information}/RECORD"] = "\n".join([*record, f"{information}/RECORD,,"]) + "\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in contents.items():
            archive.writestr(member, text)
    return path


def pinned(wheel: Path) -> str:
    """The line of a hashed requirements file that takes this wheel and no other."""
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def only_from(folder: Path) -> dict[str, str]:
    """Variables under which pip takes wheels of ``folder`` alone, and environments are built in its cache."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def record_digest(content: bytes) -> str:
    """A digest as RECORD spells it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make_venv(folder: Path) -> Path:
    """A virtual environment without anything installed; returns its interpreter."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def site_of(python: Path) -> Path:
    """Where an environment's packages lie."""
    return next((python.parent.parent / "lib").glob("python3*/site-packages"))


def unpack(wheel: Path, python: Path) -> Path:
    """Install a wheel by unpacking it; returns its dist-info folder."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_of(python))
        information = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return (site_of(python) / information).parent
