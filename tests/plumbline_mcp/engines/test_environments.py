"""The environment builder: one torch linked, the rest pinned; cached, locked, and whole or not there."""

import fcntl
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
from pathlib import Path

import pytest

from plumbline_mcp.engines import environments, pip
from plumbline_mcp.engines.environments import Environment, build
from plumbline_mcp.errors import BuildError, UsageError
from tests.wheels import make_venv, site_of, unpack, write_wheel

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with a torch of three files."""
    folder = tmp_path_factory.mktemp("base")
    python = make_venv(folder / "venv")
    files = {"torch/__init__.py": "__version__ = '9.1.0+cpu'\n", "torchgen/__init__.py": ""}
    unpack(write_wheel(folder, "torch", "9.1.0+cpu", files=files), python)
    return python


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for version in ("1.0", "2.0"):
        write_wheel(folder, "leaf", version)
    write_wheel(folder, "framework", "3.0", requires=["leaf>=2", "torch>=9"])
    return folder


def ask(environment: Environment, code: str) -> str:
    return subprocess.run(
        [environment.python, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_torch_is_linked_and_the_rest_is_installed(base: Path, index: Path, tmp_path: Path) -> None:
    said: list[str] = []
    environment = build(
        ["framework==3.0"], python=base, cache=tmp_path / "cache", progress=lambda *step: said.append(step[2])
    )
    assert (
        ask(environment, "import torch, leaf; print(torch.__version__, leaf.__version__)") == "9.1.0+cpu 2.0"
    )
    site = site_of(environment.python)
    assert sorted(path.name for path in site.iterdir() if path.is_symlink()) == [
        "torch",
        "torch-9.1.0+cpu.dist-info",
        "torchgen",
    ]
    assert not (site / "pip").exists()
    complete = json.loads((environment.path / "complete.json").read_text())
    assert "framework-3.0" in complete["distributions"]
    assert any("leaf" in text for text in said)


def test_the_second_build_comes_from_the_cache(base: Path, index: Path, tmp_path: Path) -> None:
    first = build(["framework==3.0", "leaf==2.0"], python=base, cache=tmp_path / "cache")
    for wheel in index.iterdir():
        wheel.unlink()
    assert build(["leaf==2.0", "framework == 3.0"], python=base, cache=tmp_path / "cache") == first


def test_other_requirements_are_another_environment(base: Path, index: Path, tmp_path: Path) -> None:
    first = build(["leaf==1.0"], python=base, cache=tmp_path / "cache")
    second = build(["leaf==2.0"], python=base, cache=tmp_path / "cache")
    assert first.digest != second.digest
    assert ask(first, "import leaf; print(leaf.__version__)") == "1.0"


def test_what_is_installed_without_dependencies_comes_last(base: Path, index: Path, tmp_path: Path) -> None:
    environment = build(
        ["framework==3.0"], without_dependencies=["leaf==1.0"], python=base, cache=tmp_path / "cache"
    )
    assert ask(environment, "import framework, leaf; print(leaf.__version__)") == "1.0"


def test_an_environment_whose_torch_was_removed_is_built_again(
    base: Path, index: Path, tmp_path: Path
) -> None:
    first = build(["leaf==1.0"], python=base, cache=tmp_path / "cache")
    link = site_of(first.python) / "torch"
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    second = build(["leaf==1.0"], python=base, cache=tmp_path / "cache")
    assert second == first
    assert ask(second, "import torch; print(torch.__version__)") == "9.1.0+cpu"


def test_a_requirement_on_another_torch_is_refused_by_pip(base: Path, index: Path, tmp_path: Path) -> None:
    write_wheel(index, "torch", "8.0")
    write_wheel(index, "old", "1.0", requires=["torch<9"])
    with pytest.raises(BuildError, match=r"pip could not install old==1\.0"):
        build(["old==1.0"], python=base, cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert (site_of(base) / "torch/__init__.py").is_file()


def hashed(*wheels: Path) -> dict[str, tuple[str, ...]]:
    """Requirement to hash, as a list would say it; with torch, as pip freezes it."""
    found = {"torch==9.1.0": ("sha256:" + "0" * 64,)}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        found[f"{name}=={version}"] = ("sha256:" + hashlib.sha256(wheel.read_bytes()).hexdigest(),)
    return found


def test_hashed_wheels_are_installed_beside_the_shared_torch(base: Path, index: Path, tmp_path: Path) -> None:
    wheels = [next(index.glob(name)) for name in ("framework-3.0*", "leaf-2.0*")]
    listed = hashed(*wheels)
    environment = build(list(listed), hashes=listed, python=base, cache=tmp_path / "cache")
    assert ask(environment, "import torch, leaf; print(torch.__version__, leaf.__version__)") == (
        "9.1.0+cpu 2.0"
    )
    assert (site_of(environment.python) / "torch").is_symlink()
    assert (site_of(base) / "torch/__init__.py").is_file()
    plain = build(list(listed), python=base, cache=tmp_path / "cache")
    assert plain.digest != environment.digest


def test_another_wheel_than_the_hashed_one_is_refused(base: Path, index: Path, tmp_path: Path) -> None:
    listed = hashed(next(index.glob("leaf-2.0*")))
    write_wheel(index, "leaf", "2.0", files={"leaf/__init__.py": "__version__ = 'tampered'"})
    with pytest.raises(BuildError, match="DO NOT MATCH THE HASHES"):
        build(list(listed), hashes=listed, python=base, cache=tmp_path / "cache")


def test_a_dependency_that_the_hashed_list_leaves_out_is_refused(
    base: Path, index: Path, tmp_path: Path
) -> None:
    listed = hashed(next(index.glob("framework-3.0*")))
    with pytest.raises(BuildError, match="leaf"):
        build(list(listed), hashes=listed, python=base, cache=tmp_path / "cache")


def test_a_hashed_list_on_another_torch_is_refused_before_pip_runs(
    base: Path, index: Path, tmp_path: Path
) -> None:
    listed = {"torch==8.0": ("sha256:" + "0" * 64,), **hashed(next(index.glob("leaf-2.0*")))}
    listed.pop("torch==9.1.0")
    with pytest.raises(UsageError, match=r"pins torch==8\.0 .* has torch 9\.1\.0"):
        build(list(listed), hashes=listed, python=base, cache=tmp_path / "cache")
    assert (site_of(base) / "torch/__init__.py").is_file()


def test_a_source_distribution_is_never_built(base: Path, index: Path, tmp_path: Path) -> None:
    backend = f"open({str(tmp_path / 'built')!r}, 'w')\n"
    pyproject = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    members = {"PKG-INFO": "Name: raw\nVersion: 1.0\n", "pyproject.toml": pyproject, "backend.py": backend}
    with tarfile.open(index / "raw-1.0.tar.gz", "w:gz") as archive:
        for name, text in members.items():
            entry = tarfile.TarInfo(f"raw-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(BuildError, match=r"raw==1\.0") as raised:
        build(["raw==1.0"], python=base, cache=tmp_path / "cache")
    assert "PIP_INDEX_URL" in raised.value.next_step
    assert not (tmp_path / "built").exists()


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("-r /etc/passwd", "is no requirement"),
        ("leaf=1.0", "is no requirement"),
        ("leaf @ git+https://example.org/leaf", "would be built from source"),
        ("leaf @ https://example.org/leaf.tar.gz#egg=leaf.whl", "would be built from source"),
    ],
)
def test_what_is_no_pinned_wheel_is_refused(
    base: Path, tmp_path: Path, requirement: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build([requirement], python=base, cache=tmp_path / "cache")


def test_an_interpreter_without_torch_is_refused(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "bare")
    with pytest.raises(UsageError, match="has no torch") as raised:
        build(["leaf==1.0"], python=python, cache=tmp_path / "cache")
    assert "pip install torch" in raised.value.next_step
    with pytest.raises(UsageError, match="no interpreter"):
        build(["leaf==1.0"], python=tmp_path / "nothing", cache=tmp_path / "cache")


def _builder(base: Path, cache: Path) -> "subprocess.Popen[str]":
    program = f"""
    from pathlib import Path
    from plumbline_mcp.engines.environments import build
    made = build(["framework==3.0"], python=Path({str(base)!r}), cache=Path({str(cache)!r}),
                 progress=lambda *step: print(step[2], flush=True))
    print("made", made.python)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_two_builders_make_one_environment(base: Path, index: Path, tmp_path: Path) -> None:
    builders = [_builder(base, tmp_path / "cache") for _ in range(2)]
    said = [builder.communicate(timeout=120)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert sum("environment ready" in text for text in said) == 1
    assert len({text.strip().splitlines()[-1] for text in said}) == 1


def test_a_build_that_was_killed_is_swept_and_made_again(base: Path, index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    builder = _builder(base, cache)
    assert builder.stdout is not None
    for line in builder.stdout:
        if "Processing" in line or "Looking" in line or "installing" in line:
            break
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    leftover = cache / "0123456789abcdef0123456789abcdef"
    leftover.mkdir()
    made = build(["framework==3.0"], python=base, cache=cache)
    assert ask(made, "import framework; print(framework.__version__)") == "3.0"
    assert not leftover.exists()


def test_a_build_in_progress_is_not_swept(base: Path, index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    other = cache / "0123456789abcdef0123456789abcdef"
    other.mkdir()
    with environments._locked(other, lambda *_: None):
        build(["leaf==1.0"], python=base, cache=cache)
        assert other.is_dir()
    build(["leaf==2.0"], python=base, cache=cache)
    assert not other.exists()


def test_a_pip_that_outlives_its_builder_still_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = ["-c", "import sys; print('started', flush=True); open(sys.argv[-1]).read()"]
    monkeypatch.setattr(pip, "_pip", lambda: slow)
    pipe, path = tmp_path / "pipe", tmp_path / "lock"
    os.mkfifo(pipe)
    started = threading.Event()
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    arguments = (tmp_path / "python", [str(pipe)], [], lock, lambda *_: started.set())
    installing = threading.Thread(target=pip.install, args=arguments)
    installing.start()
    assert started.wait(30)
    os.close(lock)
    with path.open("r+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pipe.write_text("end")
        installing.join(30)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_full_disk_is_a_clear_error(
    base: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(environments, "_write_complete", full)
    with pytest.raises(BuildError, match="No space left on device") as raised:
        build(["leaf==1.0"], python=base, cache=tmp_path / "cache")
    assert "XDG_CACHE_HOME" in raised.value.next_step
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_the_cache_lies_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.default_cache() == tmp_path / "plumbline" / "environments"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "fresh"))
    assert environments.default_cache() == tmp_path / "fresh/.cache/plumbline/environments"


def test_pips_variables_that_redirect_an_install_are_dropped(
    base: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = build(["leaf==1.0"], python=base, cache=tmp_path / "cache")
    assert ask(made, "import leaf; print(leaf.__version__)") == "1.0"
    assert not (tmp_path / "elsewhere").exists()


def test_an_installation_without_pip_uses_the_one_that_python_carries(
    base: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pip.importlib.util.find_spec
    monkeypatch.setattr(pip.importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    assert pip._pip()[0].endswith(".whl/pip")
    made = build(["leaf==1.0"], python=base, cache=tmp_path / "cache")
    assert ask(made, "import leaf; print(leaf.__version__)") == "1.0"
