"""The installed program in a folder that wants to be imported in its place."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.plumbline_mcp.cli.launching import LAUNCHER

_SHADOWED = ("anyio", "json", "numpy", "pydantic", "re", "safetensors", "sitecustomize", "torch", "typer")
_PACKAGES = ("approvals", "checks", "plumbline_mcp")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder whose every module leaves a mark when it is imported, as an agent's repository might."""
    folder = tmp_path / "repository"
    folder.mkdir()
    body = f"open({str(tmp_path / 'sprung')!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(66)\n"
    for name in _SHADOWED:
        (folder / f"{name}.py").write_text(body)
    for name in _PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(body)
    return folder


def inside(folder: Path, *arguments: str, program: Path = LAUNCHER) -> subprocess.CompletedProcess[str]:
    """Run the program in the folder, with everything that could lead Python astray."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder.parent),
        "PLUMBLINE_HOME": str(folder.parent / "home"),
        "PYTHONPATH": ".",
        "PYTHONHOME": "/nowhere",
        "PYTHONSTARTUP": "re.py",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def sprung(folder: Path) -> str:
    mark = folder.parent / "sprung"
    return mark.read_text() if mark.exists() else ""


def test_the_trap_works(trap: Path) -> None:
    plain = [str(LAUNCHER.parent / "python"), "-m", "plumbline_mcp", "--version"]
    subprocess.run(plain, cwd=trap, env={"PYTHONPATH": "."}, capture_output=True, check=False)
    assert sprung(trap)


@pytest.mark.parametrize(
    "arguments", [["--version"], ["list", "--json"], ["list", "checks", "--json"], ["doctor", "--json"]]
)
def test_the_program_uses_its_own_modules(trap: Path, arguments: list[str]) -> None:
    ended = inside(trap, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip()
    assert sprung(trap) == ""


def test_a_check_and_its_worker_use_their_own_modules(trap: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    for name in ("release", "exported"):
        (trap / name).mkdir()
        (trap / name / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        (trap / name / "config.json").write_text("{}")
    ended = inside(trap, "check", "export", "--original", "release", "--export", "exported", "--json")
    verdict = json.loads(ended.stdout)
    assert ended.returncode in (0, 1, 2), ended.stderr
    assert verdict["id"] == "export-0001"
    assert "crashed" not in verdict["reason"]
    assert sprung(trap) == ""


def test_a_link_to_the_launcher_works_from_anywhere(trap: Path) -> None:
    link = trap.parent / "bin" / "plumbline"
    link.parent.mkdir()
    link.symlink_to(LAUNCHER)
    ended = inside(trap, "--version", program=link)
    assert ended.returncode == 0
    assert ended.stdout == inside(trap, "--version").stdout
    assert sprung(trap) == ""
