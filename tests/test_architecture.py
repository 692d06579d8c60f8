"""The arrows of the architecture: who may import whom, and what the server process never imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"plumbline_mcp", "checks", "approvals", "templates", "tests"}
ALLOWED = {
    "plumbline_mcp": {"plumbline_mcp", "checks", "approvals"},
    "checks": {"checks"},
    "approvals": {"approvals"},
}
HEAVY = {"torch", "transformers", "matplotlib", "pyarrow", "datasets"}


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """First components of the modules that a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_follow_the_arrows(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(forbidden)
        for path in (ROOT / package).rglob("*.py")
        if (forbidden := (imports(path) & OURS) - ALLOWED[package])
    }
    assert wrong == {}


@pytest.mark.parametrize("package", ALLOWED)
def test_no_module_imports_a_heavy_library_when_it_is_imported(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(heavy)
        for path in (ROOT / package).rglob("*.py")
        if (heavy := imports(path, top_level_only=True) & HEAVY)
    }
    assert wrong == {}


def test_what_runs_inside_a_job_imports_nothing_of_ours() -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(ours)
        for path in (ROOT / "templates").rglob("*.py")
        if (ours := imports(path) & OURS)
    }
    assert wrong == {}


def test_importing_every_product_module_loads_no_heavy_library() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ALLOWED
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__main__.py"
    ]
    program = (
        f"import importlib, sys\nfor name in {sorted(modules)!r}: importlib.import_module(name)\n"
        f"print(sorted(set(sys.modules) & {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_no_file_is_longer_than_500_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for package in (*ALLOWED, "templates", "tests")
        for path in (ROOT / package).rglob("*.py")
        if (count := path.read_text().count("\n")) > 500
    }
    assert long == {}
