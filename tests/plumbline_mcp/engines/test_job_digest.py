"""The digest of a job: equal launches have one, and whatever decides what runs or is read changes it."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline_mcp.engines.contents import CACHE, Contents
from plumbline_mcp.engines.job_digest import job_content, job_digest, job_text
from plumbline_mcp.engines.launching import Launch, prepare
from tests.plumbline_mcp.engines.plain_python import plain_python
from tests.plumbline_mcp.engines.small_pack import launch


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return plain_python(tmp_path)


def digest_of(given: Launch, run_id: str = "unnamed") -> str:
    return job_digest(prepare(given, run_id))


def test_equal_launches_have_one_digest_whatever_the_run_is_called(tmp_path: Path, python: Path) -> None:
    given = launch(tmp_path, str(python), "print('x')")
    (tmp_path / "model" / "config.json").write_text("{}")
    again = given.model_copy(update={"settings": {"size": 2}})  # the pack's own default, said
    assert digest_of(given, "export-0001") == digest_of(given, "export-0002") == digest_of(again)
    text = job_text(prepare(given, "export-0001"))
    assert "export-0001" not in text
    assert str(python) in text


CHANGES: dict[str, Callable[[Path, Launch], Launch]] = {
    "setting": lambda _, given: given.model_copy(update={"settings": {"size": 3}}),
    "optional setting": lambda _, given: given.model_copy(update={"settings": {"order": "up"}}),
    "ranks": lambda _, given: given.model_copy(update={"settings": {"ranks": 2}}),
    "time": lambda _, given: given.model_copy(update={"time_limit_s": 7.0}),
    "disk": lambda _, given: given.model_copy(update={"disk_bytes": 7}),
    "log": lambda _, given: given.model_copy(update={"log_bytes": 2048}),
    "confinement": lambda _, given: given.model_copy(update={"confinement": "none"}),
    "target": lambda _, given: given.model_copy(update={"target": {"model": "another"}}),
    "model": lambda folder, given: _written(given, folder / "model" / "config.json", "{ }"),
    "another file of the model": lambda folder, given: _written(given, folder / "model" / "more", ""),
    "binding": lambda folder, given: _appended(given, folder / "pack" / "export.py", "\n# x\n"),
    "another file of the pack": lambda folder, given: _written(given, folder / "pack" / "names.toml", ""),
    "installed package": lambda folder, given: _written(given, _site(folder) / "added.py", "x = 1"),
    "interpreter's settings": lambda folder, given: _appended(given, folder / "venv" / "pyvenv.cfg", "a=b\n"),
    "plant": lambda folder, given: given.model_copy(
        update={"plants": (_file(folder / "plant.py", "import os\n"),)}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_altered_the_digest_is_another(change: str, tmp_path: Path, python: Path) -> None:
    given = launch(tmp_path, str(python), "print('x')")
    (tmp_path / "model" / "config.json").write_text("{}")
    before = job_content(prepare(given, "unnamed"))
    after = job_content(prepare(CHANGES[change](tmp_path, given), "unnamed"))
    assert after.digest != before.digest
    assert after.differences(before)
    assert before.differences(before) == []


def test_byte_code_is_no_content_of_an_interpreter(tmp_path: Path, python: Path) -> None:
    given = launch(tmp_path, str(python), "print('x')")
    before = digest_of(given)
    _file(_site(tmp_path) / "__pycache__" / "x.pyc", "x")
    assert digest_of(given) == before


def test_a_folder_that_a_path_file_names_is_content(tmp_path: Path, python: Path) -> None:
    given = launch(tmp_path, str(python), "print('x')")
    _file(tmp_path / "checkout" / "framework.py", "x = 1")
    _file(_site(tmp_path) / "editable.pth", f"{tmp_path / 'checkout'}\nimport nothing\n")
    before = digest_of(given)
    _file(tmp_path / "checkout" / "framework.py", "x = 2")
    assert digest_of(given) != before


def test_the_checkout_of_an_editable_install_is_content_and_the_workspace_in_it_is_not(
    tmp_path: Path, python: Path
) -> None:
    checkout = tmp_path / "my checkout"
    prepared = prepare(launch(tmp_path, str(python), "print('x')"), "unnamed")
    _file(checkout / "framework.py", "x = 1")
    origin = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    _file(_site(tmp_path) / "framework-1.0.dist-info" / "direct_url.json", json.dumps(origin))
    home = checkout / ".plumbline"
    before = job_digest(prepared, Contents(home))
    _file(home / "runs" / "rows-0001" / "job.json", "{}")
    assert job_digest(prepared, Contents(home)) == before
    _file(checkout / "framework.py", "x = 2")
    assert job_digest(prepared, Contents(home)) != before


def test_the_standard_library_is_content(tmp_path: Path) -> None:
    copied = tmp_path / "base"
    (copied / "bin").mkdir(parents=True)
    (copied / "bin" / "python3").write_bytes(b"program")
    (copied / "bin" / "python3").chmod(0o755)
    _file(copied / "lib" / "python3.11" / "os.py", "x = 1")
    prepared = prepare(launch(tmp_path, str(copied / "bin" / "python3"), "print('x')"), "unnamed")
    before = job_content(prepared)
    _file(copied / "lib" / "python3.11" / "os.py", "x = 2")
    (difference,) = job_content(prepared).differences(before)
    assert difference.startswith("standard library ")


def test_a_file_is_read_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    path = _file(model / "weights", "a" * 100)
    link = model / "link"
    link.symlink_to(path)
    _settled(path)
    read: list[int] = []
    real = hashlib.file_digest

    def counted(file: Any, name: Any) -> Any:
        read.append(1)
        return real(file, name)

    monkeypatch.setattr("plumbline_mcp.engines.contents.hashlib.file_digest", counted)
    first = Contents(tmp_path).of(model)
    assert Contents(tmp_path).of(model) == first
    assert len(read) == 1
    assert first == Contents().of(model)  # without a cache it is the same
    path.write_text("b" * 100)
    os.utime(path, ns=(0, 0))  # the modification time can be set back; the change time cannot
    second = Contents(tmp_path).of(model)
    assert second != first
    path.write_text("a" * 100)
    os.utime(path, ns=(0, 0))
    assert Contents(tmp_path).of(model) == first


def test_a_cache_that_is_no_database_costs_time_alone(tmp_path: Path) -> None:
    path = _file(tmp_path / "weights", "a")
    (tmp_path / CACHE).write_text("no database")
    assert Contents(tmp_path).of(path) == hashlib.sha256(b"a").hexdigest()


def test_links_that_lead_back_and_special_files_end(tmp_path: Path) -> None:
    model = tmp_path / "model"
    _file(model / "inner" / "x", "x")
    (model / "inner" / "back").symlink_to(model)
    (model / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(model / "pipe")
    before = Contents().of(model)
    (model / "gone").unlink()
    (model / "gone").symlink_to(tmp_path / "elsewhere")
    assert Contents().of(model) != before


def _settled(path: Path) -> None:
    """Wait until nobody could take a further change for the same one."""
    while time.time_ns() - path.stat().st_ctime_ns < 2.1e9:
        time.sleep(0.1)


def _site(folder: Path) -> Path:
    return next((folder / "venv").glob("lib/python3*/site-packages"))


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _written(given: Launch, path: Path, text: str) -> Launch:
    _file(path, text)
    return given


def _appended(given: Launch, path: Path, text: str) -> Launch:
    path.write_text(path.read_text() + text)
    return given
