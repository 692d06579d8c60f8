"""The recomputation shares no judging code with the checks: neither by import nor by copy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PACKAGE = "plumbline_mcp.findings.recompute"
FOLDER = ROOT / "plumbline_mcp" / "findings" / "recompute"
LIBRARIES = {"numpy", "pydantic", "jinja2", "tokenizers", "packaging"}
"""Numbers, models of questions and answers; and what a reference needs: templates, tokenizers, PEP 440."""
OURS = {"plumbline_mcp", "plumbline_mcp.findings", "plumbline_mcp.findings.questions", PACKAGE}


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield str(node.module)
            if (ROOT / str(node.module).replace(".", "/")).is_dir():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> Path | None:
    """The file of one of our modules."""
    path = ROOT / module.replace(".", "/")
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((each for each in found if each.is_file()), None)


def closure() -> set[str]:
    """Every module that running the recomputation may import, ours followed all the way."""
    pending = [f"{PACKAGE}.{path.stem}" for path in FOLDER.glob("*.py")] + [PACKAGE]
    seen: set[str] = set()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        path = file_of(module)
        if path is not None:
            pending += [*imported(path), *_parents(module)]
    return seen


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def test_its_import_graph_holds_no_check_and_no_judging_library() -> None:
    met = closure()
    assert f"{PACKAGE}.updates" in met
    tops = {module.split(".")[0] for module in met}
    assert not tops & {"checks", "approvals", "torch", "transformers", "tests", "templates", "safetensors"}
    assert tops - set(sys.stdlib_module_names) <= LIBRARIES | {"plumbline_mcp"}
    ours = {module for module in met if module.startswith("plumbline_mcp") and file_of(module)}
    assert {module for module in ours if not module.startswith(f"{PACKAGE}.")} <= OURS


def test_a_process_that_ran_every_recomputation_has_loaded_no_check() -> None:
    program = (
        f"import sys; from pathlib import Path; from {PACKAGE} import known, recompute\n"
        "from plumbline_mcp.findings.questions import Question\n"
        "for check in known():\n"
        "    recompute(Path('/nonexistent'), Question(check=check, records=('record-1',)))\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted({'checks', 'approvals', 'torch', 'transformers'} & loaded))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def _functions(folder: Path) -> dict[str, str]:
    """Bodies of functions of three statements and more, names of variables aside."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and len(node.body) > 3:
                body = [each for each in node.body if not _is_docstring(each)]
                text = "\n".join(ast.dump(_Nameless().visit(each)) for each in body)
                found[text] = f"{path.relative_to(ROOT)}:{node.name}"
    return found


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Nameless(ast.NodeTransformer):
    """Takes the names of variables out of a copy."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(id="_", ctx=node.ctx)


def test_no_function_of_the_checks_was_copied() -> None:
    own, theirs = _functions(FOLDER), _functions(ROOT / "checks")
    assert len(own) > 100
    shared = {own[body]: theirs[body] for body in own.keys() & theirs.keys()}
    assert shared == {}
