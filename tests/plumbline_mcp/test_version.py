"""The system version names the tree and the reference libraries."""

from pathlib import Path

import pytest

from plumbline_mcp import version


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in version.SHIPPED:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.py").write_text(f"# {folder}\n")
    monkeypatch.setattr(version, "ROOT", tmp_path)
    monkeypatch.setattr(version, "FROZEN", tmp_path / "plumbline_mcp" / "frozen.json")
    version.system_version.cache_clear()
    yield tmp_path
    version.system_version.cache_clear()


def fresh() -> version.SystemVersion:
    version.system_version.cache_clear()
    return version.system_version()


def test_an_unfrozen_tree_says_dev(tree: Path) -> None:
    assert str(fresh()).endswith("+dev")
    assert set(fresh().files) == {f"{folder}/file.py" for folder in version.SHIPPED}


def test_a_frozen_tree_says_so_until_a_file_changes(tree: Path) -> None:
    version.freeze([], {})
    frozen = fresh()
    assert frozen.frozen
    assert not str(frozen).endswith("+dev")
    (tree / "checks" / "file.py").write_text("changed\n")
    assert not fresh().frozen
    assert fresh().digest != frozen.digest


def test_another_reference_library_is_another_version(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fresh()
    monkeypatch.setattr(version, "_pins", lambda: before.pins | {"transformers": "5.23.0"})
    assert fresh().digest != before.digest
