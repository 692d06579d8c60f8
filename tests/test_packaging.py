"""The wheel holds the whole product and its program works wherever it is installed."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv that holds the wheel alone; its dependencies are seen through a .pth file."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin/python"),
        "install",
        "-q",
        "--no-deps",
    ]
    subprocess.run([*command, "--no-index", str(wheel)], check=True, capture_output=True)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def program(path: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    return subprocess.run(
        [str(path), *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def test_the_wheel_ships_the_templates_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        path.relative_to(ROOT).as_posix()
        for folder in ("plumbline_mcp", "checks", "approvals", "templates")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert shipped - names <= {"plumbline_mcp/launcher/plumbline"}
    assert not [name for name in names if name.startswith("tests/")]


def test_the_launcher_is_two_lines_of_shell(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    script = next(name for name in archive.namelist() if name.endswith("scripts/plumbline"))
    lines = archive.read(script).decode().splitlines()
    assert lines[0] == "#!/bin/sh"
    assert lines[1:] == ['exec "$(dirname "$(readlink -f "$0")")/python" -I -m plumbline_mcp "$@"']


def test_the_program_runs_from_any_folder_and_through_a_link(installed: Path, tmp_path: Path) -> None:
    link = tmp_path / "linked"
    link.symlink_to(installed / "bin/plumbline")
    for path in (installed / "bin/plumbline", link):
        done = program(path, "--version", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "0.1.0" in done.stdout


def test_the_installed_program_uses_its_own_packages(installed: Path, tmp_path: Path) -> None:
    code = "import checks, plumbline_mcp, sys; print(checks.__file__, plumbline_mcp.__file__)"
    done = program(installed / "bin/python", "-I", "-c", code, cwd=tmp_path)
    assert done.stdout.count(str(installed)) == 2


def test_wheel_and_checkout_are_the_same_system_version(installed: Path, tmp_path: Path) -> None:
    code = "from plumbline_mcp.version import system_version; print(system_version())"
    versions = {
        program(python, "-I", "-c", code, cwd=tmp_path).stdout.strip()
        for python in (installed / "bin/python", Path(sys.executable))
    }
    assert len(versions) == 1
    assert versions != {""}
