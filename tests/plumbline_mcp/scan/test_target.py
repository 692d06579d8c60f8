"""A target: every mistake is met before anything is built, with file, key, value and the next step."""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import checks
from checks.references.packs import load_pack
from plumbline_mcp.engines.images import Image, Mount
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.scan.target import TargetEnvironment, TargetFile, load_target, prepared_python
from plumbline_mcp.scan.target_writing import Given, write_target
from tests.wheels import write_wheel

BASE = """format = 1
framework = "transformers"
model = "release"
workload = "rows.jsonl"
"""
PYTHON = f'[environment]\npython = "{sys.executable}"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "target.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_relative_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, BASE + PYTHON)
    monkeypatch.chdir("/")
    target = load_target(path)
    assert target.files() == {"model": folder / "release", "workload": folder / "rows.jsonl"}
    assert next(step.name for step in target.scan_steps()) == "image"
    subject = target.subject(Path(sys.executable))
    assert subject.target == {"model": "release", "target": "target.toml"}


def test_settings_reach_the_jobs_that_know_them(folder: Path) -> None:
    text = 'commit = "5.24.0"\n' + BASE + PYTHON + "[recipe]\nepochs = 3\n[settings.rows]\nbatch_size = 2\n"
    subject = load_target(written(folder, text)).subject(Path(sys.executable))
    pack = load_pack("transformers")
    assert subject.settings_of(pack, "rows") == {"epochs": 3, "batch_size": 2}
    assert subject.settings_of(pack, "export") == {}
    assert subject.arguments == {"image": {"commit": "5.24.0"}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("format = ", "is no valid TOML"),
        (BASE, "environment: Field required"),
        (PYTHON, "format: Field required"),
        (BASE.replace("format = 1", "format = 2") + PYTHON, "format: Input should be 1 (got 2)"),
        (BASE + "modle = 'x'\n" + PYTHON, "modle: there is no such key (got 'x'); known here: commit"),
        (BASE + PYTHON + "pyhton = 'x'\n", "environment.pyhton: there is no such key"),
        (BASE + "[environment]\n", "name exactly one of python, requirements, image and pack = true"),
        (BASE + PYTHON + "pack = true\n", "name exactly one of python"),
        (BASE.replace('"release"', '"nowhere"') + PYTHON, "model: there is no "),
        (BASE.replace('"release"', '"rows.jsonl"') + PYTHON, "rows.jsonl holds no config.json"),
        (BASE.replace('"transformers"', '"nemo"') + PYTHON, "there is no connection pack 'nemo'; built in:"),
        (BASE + '[environment]\npython = "no/python"\n', "environment: there is no "),
        (BASE + '[environment]\nrequirements = "none.txt"\n', "none.txt cannot be read"),
        (BASE + '[environment.image]\nname = "x:latest"\n', "names no content"),
        (BASE + PYTHON + "[recipe]\nlearning_rat = 1\n", "no procedure of this scan has a setting"),
        (BASE + PYTHON + '[recipe]\nepochs = "two"\n', "setting epochs is 'two'; give a value of type int"),
        (BASE + PYTHON + "[settings.training]\nsteps = 1\n", "settings are given for 'training'"),
        (BASE + 'steps = ["dtaa"]\n' + PYTHON, "has no step 'dtaa'; did you mean data?"),
    ],
)
def test_a_mistake_names_file_key_value_and_what_to_do(folder: Path, text: str, says: str) -> None:
    path = written(folder, text)
    with pytest.raises(UsageError) as refused:
        load_target(path)
    said = f"{refused.value.message}; {refused.value.next_step}"
    assert str(path) in said
    assert says in said
    assert refused.value.next_step


def test_a_file_that_is_not_there_or_too_large_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_target(folder / "absent.toml")
    with pytest.raises(UsageError, match="is larger than"):
        load_target(written(folder, "#" * 300_000))


def given(folder: Path, **changed: Any) -> Given:
    fields: dict[str, Any] = {
        "framework": "transformers",
        "model": folder / "release",
        "workload": folder / "rows.jsonl",
        "python": sys.executable,
    }
    return Given.model_validate(fields | changed)


def test_what_is_written_is_read_back(folder: Path) -> None:
    recipe = {"epochs": 3, "learning_rate": 1e-05, "shuffle": False, "columns": {"messages": 'the "chat"'}}
    target = write_target(folder / "t.toml", given(folder, recipe=recipe, commit="v5.24.0"))
    assert target == load_target(folder / "t.toml")
    assert target.file.recipe == recipe
    assert 'model = "release"' in (folder / "t.toml").read_text()
    assert str(target.file.environment.python) == sys.executable


def test_a_target_that_is_there_is_replaced_only_by_force(folder: Path) -> None:
    path = written(folder, "mine")
    with pytest.raises(UsageError, match="is there already"):
        write_target(path, given(folder))
    assert path.read_text() == "mine"
    write_target(path, given(folder), force=True)
    load_target(path)


def test_nothing_is_written_when_a_value_does_not_fit(folder: Path) -> None:
    with pytest.raises(UsageError, match="setting"):
        write_target(folder / "t.toml", given(folder, recipe={"epochs": -1}))
    assert sorted(path.name for path in folder.iterdir()) == ["release", "rows.jsonl"]


def test_requirements_become_an_interpreter(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path_factory.mktemp("wheels")
    wheel = write_wheel(wheels, "leaf", "2.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "pins.txt").write_text(f"leaf==2.0 --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    target = load_target(written(folder, BASE + '[environment]\nrequirements = "pins.txt"\n'))
    python = anyio.run(prepared_python, target, folder / "images")
    assert list(python.parent.parent.glob("lib/python3*/site-packages/leaf"))
    (folder / "pins.txt").write_text(f"leaf==2.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(PlumblineError, match="DO NOT MATCH THE HASHES"):
        anyio.run(prepared_python, target, folder / "images")


def test_every_key_is_described() -> None:
    page = (Path(checks.__file__).parent.parent / "docs" / "target.md").read_text(encoding="utf-8")
    for model in (TargetFile, TargetEnvironment, Image, Mount):
        for name in model.model_fields:
            assert name in page, f"{model.__name__}.{name}"
