"""Check image on environments that other tools made: a clean one passes, an edited file is found."""

import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.check import evaluate
from checks.image import CHECK
from checks.verdict import Outcome, Verdict
from tests.checks.test_image import FILES, PACK, REQUIRES, problems
from tests.checks.test_image_commits import git
from tests.wheels import make_venv, site_of, unpack, write_wheel

BIN = Path(sys.executable).parent
TAG = sys.implementation.cache_tag
SCRIPT = {"big_trainer-2.1.0.dist-info/entry_points.txt": "[console_scripts]\ntrain = big_trainer:main\n"}
LOSS = "big_trainer/loss.py"
EDITED = FILES[LOSS].replace("len(values)", "max(1, len(values))")
OFFLINE = {
    "UV_OFFLINE": "1",
    "UV_NO_CONFIG": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "VIRTUALENV_NO_DOWNLOAD": "1",
}


def run(*command: str | Path, **variables: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **OFFLINE, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def wheels(folder: Path) -> Path:
    """A folder of wheels: the framework with a script and a namespace package, and what it requires."""
    folder.mkdir()
    write_wheel(folder, "leaf", "2.0", requires=["root>=1"], files={"space/leaf/core.py": "x = 1\n"})
    write_wheel(folder, "root", "1.0", files={"space/root/core.py": "x = 1\n"})
    write_wheel(folder, "under-score-name", "4.0")
    write_wheel(folder, "kernel-pack", "1.2")
    extras = ["Provides-Extra: kernels", "Provides-Extra: test"]
    write_wheel(folder, "big-trainer", "2.1.0", requires=REQUIRES, files=FILES | SCRIPT, metadata=extras)
    return folder


def with_uv(folder: Path, found: Path, *options: str) -> Path:
    run(BIN / "uv", "venv", "--python", sys.executable, folder)
    python = folder / "bin/python"
    index = ("--no-index", "--find-links", found, "--cache-dir", folder.parent / "cache")
    run(BIN / "uv", "pip", "install", *options, "--python", python, *index, "big-trainer[kernels]")
    return python


def with_virtualenv(folder: Path, found: Path, *options: str) -> Path:
    run(
        BIN / "virtualenv",
        "--python",
        sys.executable,
        "--app-data",
        folder.parent / "cache",
        *options,
        folder,
    )
    with_pip(folder / "bin/python", found)
    return folder / "bin/python"


def with_pip(python: Path, found: Path, *options: str | Path) -> Path:
    index = ("--no-index", "--find-links", found, "--disable-pip-version-check")
    run(BIN / "python", "-m", "pip", "--python", python, "install", *options, *index, "big-trainer[kernels]")
    return python


def with_target(folder: Path, found: Path) -> Path:
    """``pip install --target``: an overlay that a .pth file puts on the path."""
    python = make_venv(folder)
    with_pip(python, found, "--target", folder.parent / "overlay")
    (site_of(python) / "overlay.pth").write_text(f"{folder.parent / 'overlay'}\n")
    return python


def with_conda(folder: Path, found: Path) -> Path:
    """As conda, mamba and rattler link packages: see `linked`."""
    python = make_venv(folder)
    for wheel in sorted(found.glob("*.whl")):
        linked(wheel, python)
    return python


def linked(wheel: Path, python: Path) -> None:
    """Unpack a wheel as the conda package of it is linked.

    Its INSTALLER says conda after RECORD was made, REQUESTED and direct_url.json are recorded and dropped,
    the script is generated anew for the prefix (RECORD has the digest of the build's), byte code is compiled,
    and ``conda-meta`` says the digest of each file as it lies there, none for what was generated.
    """
    information, prefix = unpack(wheel, python), python.parent.parent
    record = information / "RECORD"
    lines = [
        f"{information.name}/{name},sha256=abc,9" for name in ("INSTALLER", "REQUESTED", "direct_url.json")
    ]
    script = prefix / "bin/train"
    if (information / "entry_points.txt").exists():
        lines += ["../../../bin/train,sha256=abc,9"]
        script.write_text(f"#!{python}\nimport sys\nfrom big_trainer import main\nsys.exit(main())\n")
    record.write_text(record.read_text() + "\n".join(lines) + "\n")
    (information / "INSTALLER").write_text("conda")
    names = [line.split(",")[0] for line in record.read_text().splitlines()]
    files = [site_of(python) / name for name in dict.fromkeys(names) if (site_of(python) / name).is_file()]
    paths: list[dict[str, Any]] = [
        {"_path": str(path.relative_to(prefix)), "path_type": "hardlink", "sha256_in_prefix": sha256_of(path)}
        for path in files
        if ".." not in path.parts
    ]
    if script.exists() and any(".." in path.parts for path in files):
        paths.append({"_path": "bin/train", "path_type": "unix_python_entry_point"})
    for path in files:
        if path.suffix == ".py":
            cached = py_compile.compile(str(path), doraise=True)
            paths.append({"_path": str(Path(cached).relative_to(prefix)), "path_type": "pyc_file"})
    (prefix / "conda-meta").mkdir(exist_ok=True)
    name = f"{information.name.removesuffix('.dist-info')}-pyhd8ed1ab_0"
    about = {"name": name, "files": [path["_path"] for path in paths], "paths_data": {"paths": paths}}
    (prefix / "conda-meta" / f"{name}.json").write_text(json.dumps(about))


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


MADE: dict[str, Callable[[Path, Path], Path]] = {
    "venv and pip": lambda folder, found: with_pip(make_venv(folder), found),
    "pip --no-compile": lambda folder, found: with_pip(make_venv(folder), found, "--no-compile"),
    "pip --target": with_target,
    "uv": with_uv,
    "uv --compile-bytecode": lambda folder, found: with_uv(folder, found, "--compile-bytecode"),
    "uv --link-mode symlink": lambda folder, found: with_uv(folder, found, "--link-mode", "symlink"),
    "virtualenv": with_virtualenv,
    "virtualenv with setuptools": lambda folder, found: with_virtualenv(
        folder, found, "--setuptools", "bundle"
    ),
    "conda": with_conda,
}


class Made:
    """An environment that a tool made, with a copy of its framework file to put back."""

    def __init__(self, tool: str, folder: Path) -> None:
        self.folder = folder
        (folder / "pack").mkdir()
        (folder / "pack/pack.toml").write_text(PACK)
        self.python = MADE[tool](folder / "env", wheels(folder / "wheels"))
        overlay = folder / "overlay"
        self.site = overlay if overlay.exists() else site_of(self.python)
        self.loss = self.site / LOSS
        self.cached = self.site / f"big_trainer/__pycache__/loss.{TAG}.pyc"

    def check(self, **inputs: Any) -> Verdict:
        asked = {"python": self.python, "framework": str(self.folder / "pack"), **inputs}
        return evaluate(CHECK, CHECK.inputs.model_validate(asked))


@pytest.fixture(scope="module", params=sorted(MADE))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One for tests that need no more than one tool."""
    return Made("venv and pip", tmp_path_factory.mktemp("shared"))


@pytest.fixture
def edit(made: Made) -> Iterator[Callable[[Path, bytes], None]]:
    """Replaces a file by another one; puts the old one back."""
    kept: list[tuple[Path, Path | None]] = []

    def replace(path: Path, content: bytes) -> None:
        aside = path.with_name(path.name + ".kept") if path.exists() else None
        if aside:
            path.rename(aside)
        kept.append((path, aside))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    yield replace
    for path, aside in kept:
        path.unlink()
        if aside:
            aside.rename(path)


def test_a_clean_environment_never_alarms(made: Made) -> None:
    verdict = made.check(commit="2.1")
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, []), verdict.reason


def test_an_edited_file_is_found(made: Made, edit: Callable[[Path, bytes], None]) -> None:
    edit(made.loss, EDITED.encode())
    found = [(part, code, Path(place).name) for part, code, place in problems(made.check())]
    assert found == [("files", "file-edited", "loss.py")]


def forged(source: Path, text: str, mode: str) -> bytes:
    """Byte code of another text under a header that an import takes for the source's own."""
    import marshal

    magic, about = importlib.util.MAGIC_NUMBER, source.stat()
    stamps = {
        "timestamp": (0, int(about.st_mtime).to_bytes(4, "little") + about.st_size.to_bytes(4, "little")),
        "checked": (3, importlib.util.source_hash(source.read_bytes())),
        "unchecked": (1, importlib.util.source_hash(source.read_bytes())),
    }
    flags, stamp = stamps[mode]
    code = compile(text, str(source), "exec", dont_inherit=True, optimize=0)
    return magic + flags.to_bytes(4, "little") + stamp + marshal.dumps(code)


@pytest.mark.parametrize("mode", ["timestamp", "checked", "unchecked"])
def test_byte_code_under_a_forged_header_is_found(
    made: Made, edit: Callable[[Path, bytes], None], mode: str
) -> None:
    edit(made.cached, forged(made.loss, EDITED, mode))
    run_it = "import big_trainer.loss as m; raise SystemExit(m.loss([]) != 0)"
    imported = subprocess.run([made.python, "-I", "-c", run_it], check=False)
    assert imported.returncode == 0  # an import does run the forged code: the honest one divides by zero
    verdict = made.check()
    assert verdict.outcome is Outcome.FAIL
    assert [(part, code) for part, code, _ in problems(verdict)] == [("files", "bytecode-differs")]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (FILES[LOSS], Outcome.PASS),
        (FILES[LOSS] + "# a comment\n", Outcome.PASS),
        (FILES[LOSS].replace("/", "*"), Outcome.INCONCLUSIVE),
        (FILES[LOSS].replace("sum", "max"), Outcome.FAIL),
        (FILES[LOSS].replace("/", "/ 1.0 /"), Outcome.FAIL),
        (FILES[LOSS] + "def loss(values):\n    return 0\n", Outcome.FAIL),
    ],
)
def test_what_differs_decides(shared: Made, text: str, outcome: Outcome) -> None:
    """Only the instructions: a bug-fix release of the interpreter may have compiled it."""
    shared.cached.write_bytes(forged(shared.loss, text, "timestamp"))
    assert shared.check().outcome is outcome


def test_byte_code_that_an_import_would_not_take_is_no_problem(
    made: Made, edit: Callable[[Path, bytes], None]
) -> None:
    content = bytearray(forged(made.loss, EDITED, "timestamp"))
    content[8] ^= 1  # another time of the source: Python compiles it anew
    edit(made.cached, bytes(content))
    edit(made.cached.with_name("loss.cpython-27.pyc"), b"old")
    assert problems(made.check()) == []


def test_what_takes_the_interpreter_down_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checks.records import bytecode

    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(bytecode, "PROBE", dying)
    verdict = Made("venv and pip", tmp_path).check()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert [code for _, code, _ in problems(verdict)] == ["bytecode-unread"]


def test_a_framework_that_is_a_namespace_package(tmp_path: Path) -> None:
    made = Made("venv and pip", tmp_path)
    files = {"space_trainer/core/loss.py": "x = 1\n", "space_trainer/run.py": "y = 2\n"}
    unpack(write_wheel(tmp_path, "space-trainer", "1.0", requires=["leaf>=1"], files=files), made.python)
    pack = PACK.replace("big-trainer", "space-trainer").replace("big_trainer", "space_trainer")
    (tmp_path / "pack/pack.toml").write_text(pack)
    verdict = made.check()
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, []), verdict.reason
    assert str(verdict.parts[2].coverage) == "4 of 4 files"
    other = tmp_path / "other/space_trainer"
    other.mkdir(parents=True)
    hook = {"first.pth": f"import sys; sys.path.insert(0, {str(other.parent)!r})\n"}
    unpack(write_wheel(tmp_path, "first", "1.0", files=hook), made.python)
    verdict = made.check()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert [code for _, code, _ in problems(verdict)] == ["module-shadowed"]
    (other / "__init__.py").write_text("")
    assert ("files", "module-shadowed") in [found[:2] for found in problems(made.check())]
    shutil.rmtree(other)
    (made.site / "space_trainer/run.py").write_text("y = 3\n")
    assert [code for _, code, _ in problems(made.check())] == ["file-edited"]


# --- editable installations --------------------------------------------------------------------------------

BACKEND = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
PROJECT = '[project]\nname = "big-trainer"\nversion = "2.1.0"\ndependencies = ["leaf>=1.5"]\n'


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_an_editable_installation_of_a_checkout(tmp_path: Path, tool: str) -> None:
    made = Made("uv" if tool == "uv" else "venv and pip", tmp_path)
    checkout = tmp_path / "checkout"
    for name, text in FILES.items():
        (checkout / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "src" / name).write_text(text)
    (checkout / "pyproject.toml").write_text(BACKEND + PROJECT)
    (checkout / ".gitignore").write_text("__pycache__/\n*.egg-info/\n")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "release")):
        git(checkout, *command)
    backends = str(Path(importlib.util.find_spec("setuptools").origin).parent.parent)  # type: ignore[arg-type, union-attr]
    options = ("--no-build-isolation", "--no-deps", "--editable", checkout)
    if tool == "uv":
        run(BIN / "uv", "pip", "install", "--python", made.python, *options, PYTHONPATH=backends)
    else:
        pip = (BIN / "python", "-m", "pip", "--python", made.python, "install")
        run(*pip, "--disable-pip-version-check", *options, PYTHONPATH=backends)
    subprocess.run([made.python, "-c", "import big_trainer.loss"], check=True)
    verdict = made.check()
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, []), verdict.reason
    loss = checkout / "src" / LOSS
    cached = Path(importlib.util.cache_from_source(str(loss)))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(forged(loss, EDITED, "timestamp"))
    assert [code for _, code, _ in problems(made.check())] == ["bytecode-differs"]
    cached.unlink()
    loss.write_text(EDITED)
    assert [code for _, code, _ in problems(made.check())] == ["file-edited"]


# --- conda -------------------------------------------------------------------------------------------------


def test_a_conda_package_without_a_record_is_judged_by_its_own(tmp_path: Path) -> None:
    made = Made("conda", tmp_path)
    (made.site / "big_trainer-2.1.0.dist-info/RECORD").unlink()
    meta = next((made.python.parent.parent / "conda-meta").glob("big_trainer*.json"))
    about = json.loads(meta.read_text())
    about["paths_data"]["paths"] = [
        p for p in about["paths_data"]["paths"] if not p["_path"].endswith("/RECORD")
    ]
    meta.write_text(json.dumps(about))
    verdict = made.check()
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, []), verdict.reason
    assert "compared with: conda package" in verdict.parts[2].notes


def test_what_pip_installed_over_a_conda_package_is_judged_by_its_record(tmp_path: Path) -> None:
    made = Made("conda", tmp_path)
    information = made.site / "big_trainer-2.1.0.dist-info"
    shutil.rmtree(information)
    unpack(tmp_path / "wheels/big_trainer-2.1.0-py3-none-any.whl", made.python)
    (information / "INSTALLER").write_text("pip\n")
    verdict = made.check()
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, [])
    assert "compared with: RECORD" in verdict.parts[2].notes


def test_byte_code_with_a_recorded_digest_is_the_packages_own(tmp_path: Path) -> None:
    """A conda package carries byte code that another bug-fix release of the interpreter may have compiled."""
    made = Made("conda", tmp_path)
    made.cached.write_bytes(forged(made.loss, FILES[LOSS].replace("/", "*"), "timestamp"))
    assert made.check().outcome is Outcome.INCONCLUSIVE
    meta = next((made.python.parent.parent / "conda-meta").glob("big_trainer*.json"))
    about = json.loads(meta.read_text())
    for path in about["paths_data"]["paths"]:
        if path["_path"].endswith(f"loss.{TAG}.pyc"):
            path |= {"path_type": "hardlink", "sha256": sha256_of(made.cached)}
    meta.write_text(json.dumps(about))
    assert made.check().outcome is Outcome.PASS
    made.cached.write_bytes(forged(made.loss, EDITED, "timestamp"))
    codes = [code for _, code, _ in problems(made.check())]
    assert sorted(codes) == ["bytecode-differs", "file-edited"]
