"""What a job may read: its interpreter's import path and its inputs, never keys or other runs."""

import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.engines.confinement import reach as reaching
from plumbline_mcp.engines.confinement.reach import reach


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, a workspace with two runs, a virtual environment."""
    home = tmp_path / "user"
    for name in (
        ".ssh/id_test",
        ".config/plumbline/policy",
        "project/code.py",
        "work/runs/rows-0001/job.json",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    (home / "work/runs/rows-0002").mkdir()
    (home / "work/plumbline.db").write_text("x")
    monkeypatch.setattr(reaching.pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(home)))
    return home


def may_read(paths: tuple[Path, ...], wanted: Path) -> bool:
    return any(wanted.is_relative_to(path) or wanted.is_relative_to(path.resolve()) for path in paths)


def test_an_input_that_holds_keys_gives_all_but_the_keys(user: Path) -> None:
    allowed = reach(user / "work/runs/rows-0001", Path(sys.executable), [user]).reads
    assert may_read(allowed, user / "project/code.py")
    assert may_read(allowed, user / "work/runs/rows-0001/job.json")
    for secret in (".ssh/id_test", ".config/plumbline/policy"):
        assert not may_read(allowed, user / secret)


def test_an_import_path_gives_neither_other_runs_nor_the_database(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "import_paths", lambda _: [user / "work", user / "project"])
    allowed = reach(user / "work/runs/rows-0001", Path(sys.executable), []).reads
    assert may_read(allowed, user / "project/code.py")
    assert not may_read(allowed, user / "work/runs/rows-0002")
    assert not may_read(allowed, user / "work/plumbline.db")


def test_links_in_an_input_lead_to_neither_the_database_nor_the_trust_roots(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    model = tmp_path / "model"
    for folder in (model, tmp_path / "trust"):
        folder.mkdir()
    (tmp_path / "trust/allowed_signers").write_text("x")
    (model / "config.json").write_text("{}")
    (model / "weights").symlink_to(user / "work/plumbline.db")
    (model / "signers").symlink_to(tmp_path / "trust/allowed_signers")
    (model / "roots").symlink_to(tmp_path / "trust")
    allowed = reach(user / "work/runs/rows-0001", Path(sys.executable), [model]).reads
    assert may_read(allowed, model / "config.json")
    for secret in (user / "work/plumbline.db", tmp_path / "trust", tmp_path / "trust/allowed_signers"):
        assert not may_read(allowed, secret)


def test_a_run_that_is_an_input_is_readable(user: Path) -> None:
    other = user / "work/runs/rows-0002"
    assert may_read(reach(user / "work/runs/rows-0001", Path(sys.executable), [other]).reads, other)


def test_links_of_a_model_cache_and_of_an_environment_are_followed(user: Path, tmp_path: Path) -> None:
    blobs, model, base = tmp_path / "blobs", tmp_path / "model/sub", tmp_path / "base/torch"
    for folder in (blobs, model, base):
        folder.mkdir(parents=True)
    (blobs / "weights").write_text("w")
    (model / "weights").symlink_to(blobs / "weights")
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (site / "torch").symlink_to(base)
    (site / "more.pth").write_text(f"{tmp_path / 'checkout'}\n")
    (tmp_path / "checkout").mkdir()
    run = user / "work/runs/rows-0001"
    allowed = reach(run, tmp_path / "env/bin/python", [tmp_path / "model"]).reads
    for wanted in (blobs / "weights", base, tmp_path / "checkout", site):
        assert may_read(allowed, wanted), wanted
    assert not may_read(allowed, tmp_path / "elsewhere")
