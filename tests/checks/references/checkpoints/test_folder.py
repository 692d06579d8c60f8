"""Checkpoint folders: shards by the index, and every way out of the folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checks.references.checkpoints.folder import confined, open_checkpoint
from checks.references.checkpoints.header import Unreadable


def _sharded(folder: Path, weight_map: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({"a": np.ones(4, np.float32)}, folder / "one.safetensors")
    save_file({"b": np.ones(2, np.float32)}, folder / "two.safetensors")
    index = {
        "weight_map": {"a": "one.safetensors", "b": "two.safetensors"} if weight_map is None else weight_map
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_are_read_by_the_index(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_sharded(tmp_path / "x"))
    assert {name: tensor.file for name, tensor in checkpoint.tensors.items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
    }
    assert checkpoint.tensors["a"].codes().view(np.float32).tolist() == [1, 1, 1, 1]
    assert checkpoint.nbytes == 24


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd.safetensors",
        "../out.safetensors",
        "x/../../out.safetensors",
        "a\\b.safetensors",
        "./a.safetensors",
    ],
)
def test_an_index_cannot_name_a_path_outside_its_folder(tmp_path: Path, name: str) -> None:
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "out.safetensors")
    folder = _sharded(tmp_path / "x", {"a": name})
    with pytest.raises(Unreadable, match="no plain path inside the folder"):
        open_checkpoint(folder)


def test_an_index_that_names_no_safetensors_file_or_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no safetensors file"):
        open_checkpoint(_sharded(tmp_path / "x", {"a": "pytorch_model.bin"}))
    with pytest.raises(Unreadable, match="no weight_map"):
        open_checkpoint(_sharded(tmp_path / "y", {}))


def test_a_link_that_leaves_the_folder_is_refused_and_one_that_stays_is_followed(tmp_path: Path) -> None:
    folder = _sharded(tmp_path / "x")
    save_file({"b": np.ones(2, np.float32)}, tmp_path / "secret.safetensors")
    (folder / "two.safetensors").unlink()
    (folder / "two.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(Unreadable, match="leaves the folder"):
        open_checkpoint(folder)
    (folder / "inside").mkdir()
    (tmp_path / "secret.safetensors").rename(folder / "inside" / "b.safetensors")
    (folder / "two.safetensors").unlink()
    (folder / "two.safetensors").symlink_to("inside/b.safetensors")
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}


def test_links_of_the_model_cache_lead_into_its_blobs(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": np.ones(4, np.float32)}, blobs / "0123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert set(open_checkpoint(snapshot).tensors) == {"a"}
    (tmp_path / "other").write_bytes((blobs / "0123").read_bytes())
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../other")
    with pytest.raises(Unreadable, match="leaves the folder"):
        open_checkpoint(snapshot)


def test_a_document_that_is_a_link_out_or_too_large_is_refused(tmp_path: Path) -> None:
    folder = _sharded(tmp_path / "x")
    (folder / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(Unreadable, match="leaves the folder"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with (folder / "config.json").open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(Unreadable, match="at most"):
        open_checkpoint(folder)


def test_a_missing_shard_a_tensor_held_twice_and_a_wrong_index_are_refused(tmp_path: Path) -> None:
    folder = _sharded(tmp_path / "x")
    (folder / "two.safetensors").unlink()
    with pytest.raises(Unreadable, match="No such file"):
        open_checkpoint(folder)
    save_file({"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}, folder / "two.safetensors")
    with pytest.raises(Unreadable, match=r"which one\.safetensors holds too"):
        open_checkpoint(folder)
    save_file({"c": np.ones(2, np.float32)}, folder / "two.safetensors")
    with pytest.raises(Unreadable, match="but it does not"):
        open_checkpoint(folder)
    save_file({"b": np.ones(2, np.float32), "c": np.ones(2, np.float32)}, folder / "two.safetensors")
    with pytest.raises(Unreadable, match="does not name 'c'"):
        open_checkpoint(folder)


def test_shards_without_an_index_two_sets_of_weights_and_an_empty_folder_are_told_apart(
    tmp_path: Path,
) -> None:
    folder = _sharded(tmp_path / "x")
    save_file({"a": np.ones(2, np.float32)}, folder / "model.safetensors")
    with pytest.raises(Unreadable, match="ignore the other"):
        open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(Unreadable, match="find no weights without it"):
        open_checkpoint(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        open_checkpoint(tmp_path / "empty")


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(Unreadable, match="cannot be opened"):
        confined(tmp_path, "a")


def test_a_file_cut_short_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_sharded(tmp_path / "x"))
    with (tmp_path / "x" / "one.safetensors").open("r+b") as file:
        file.truncate(checkpoint.tensors["a"].source.begin + 4)  # type: ignore[attr-defined]
    with pytest.raises(Unreadable, match="ended while it was read"):
        checkpoint.tensors["a"].codes()
