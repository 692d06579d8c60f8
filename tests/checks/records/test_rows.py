"""Row readers: the same rows from every format, and clear refusals of what does not fit."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from safetensors.numpy import load_file, save_file

from checks.errors import BadInput, NotEvaluated
from checks.records.rows import Sequence, read_dump
from tests.checks.tiny_release import write_record

ROWS: list[dict[str, Any]] = [
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
    {"input_ids": [8, 9], "labels": [-100, 9]},
]


def plain(sequences: tuple[Sequence, ...]) -> list[dict[str, list[int]]]:
    return [
        {"input_ids": s.ids.tolist(), "labels": s.labels.tolist()} for s in sequences if s.labels is not None
    ]


def save_to_disk(folder: Path, rows: list[dict[str, Any]], files: list[str] | None = None) -> Path:
    """What `datasets` writes: Arrow streams and the files that name them."""
    folder.mkdir(parents=True)
    names = files or ["data-00000-of-00001.arrow"]
    table = arrow.Table.from_pylist(rows)
    for number, name in enumerate(names):
        part = table.slice(number * len(rows) // len(names), len(rows) // len(names))
        with (
            arrow.OSFile(str(folder / name), "wb") as sink,
            arrow.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names]}), "utf-8")
    (folder / "dataset_info.json").write_text("{}", "utf-8")
    return folder


def test_jsonl_safetensors_and_saved_data_sets_hold_the_same_rows(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", encoding="utf-8")
    record = write_record(tmp_path / "rows.safetensors", ROWS)
    saved = save_to_disk(tmp_path / "saved", ROWS, ["a.arrow", "b.arrow"])
    for path in (lines, record, saved):
        assert plain(read_dump(path).sequences) == ROWS, path


def test_a_dict_of_one_split_is_read_and_of_two_is_refused(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "sets" / "train", ROWS)
    (tmp_path / "sets" / "dataset_dict.json").write_text('{"splits": ["train"]}', "utf-8")
    assert plain(read_dump(tmp_path / "sets").sequences) == ROWS
    (tmp_path / "sets" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', "utf-8")
    with pytest.raises(BadInput, match="train, test"):
        read_dump(tmp_path / "sets")


def test_a_saved_data_set_may_not_name_files_elsewhere(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved", ROWS)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}', "utf-8")
    with pytest.raises(BadInput, match="outside the data set"):
        read_dump(folder)


def test_optional_columns_are_read(tmp_path: Path) -> None:
    row = ROWS[0] | {
        "attention_mask": [1, 1, 1],
        "position_ids": [0, 1, 0],
        "seq_lengths": [2, 1],
        "epoch": 2,
    }
    saved = read_dump(save_to_disk(tmp_path / "saved", [row | {"row_ids": [4, 5]}])).sequences[0]
    assert (saved.lengths, saved.rows, saved.epoch) == ((2, 1), (4, 5), 2)
    assert saved.positions is not None
    assert saved.positions.tolist() == [0, 1, 0]


def test_a_record_keeps_documents_epochs_and_rank(tmp_path: Path) -> None:
    rows = [ROWS[0] | {"documents": [(7, 2), (-1, 1)]}, ROWS[1] | {"documents": [(9, 2)]}]
    first, second = read_dump(write_record(tmp_path / "r.safetensors", rows, 2, rank="3")).sequences
    assert (first.lengths, first.rows, first.epoch, first.rank) == ((2, 1), (7, -1), 2, 3)
    assert (second.lengths, second.rows, second.batch) == ((2,), (9,), 1)


def changed(tmp_path: Path, change: dict[str, Any], **metadata: str) -> Path:
    path = write_record(tmp_path / "rows.safetensors", ROWS, **metadata)
    tensors = load_file(path) | change
    about = {"format": "plumbline-rows", "version": "1", "rank": "0", "world_size": "1"} | metadata
    save_file({name: value for name, value in tensors.items() if value is not None}, path, metadata=about)
    return path


@pytest.mark.parametrize(
    ("change", "metadata", "words"),
    [
        ({"offsets": np.array([0, 9, 5])}, {}, "offsets do not rise"),
        ({"offsets": np.array([0, 3, 900])}, {}, "offsets do not rise"),
        ({"document_offsets": np.array([0, 4, 5])}, {}, "a document crosses a sequence"),
        ({"labels": np.array([1], dtype=np.int32)}, {}, "labels has 1 entries, expected 5"),
        ({"epochs": np.array([1], dtype=np.int32)}, {}, "epochs has 1 entries, expected 2"),
        ({"input_ids": np.array([1.0], dtype=np.float32)}, {}, "input_ids is F32"),
        ({"input_ids": None}, {}, "has no tensor 'input_ids'"),
        ({}, {"version": "2"}, "version '2'"),
        ({}, {"rank": "-1"}, "rank '-1'"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any], metadata: dict[str, str], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        read_dump(changed(tmp_path, change, **metadata))


def test_a_truncated_record_is_refused(tmp_path: Path) -> None:
    path = write_record(tmp_path / "rows.safetensors", ROWS)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadInput, match="cannot be read as safetensors"):
        read_dump(path)


def test_what_is_not_there_or_holds_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="do not exist"):
        read_dump(tmp_path / "nothing")
    with pytest.raises(BadInput, match=r"no state\.json"):
        read_dump(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(NotEvaluated, match="0 rows"):
        read_dump(tmp_path / "empty.jsonl")


def test_more_rows_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.records.rows.MAX_TOKENS", 4)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    with pytest.raises(BadInput, match="more than"):
        read_dump(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_rows_that_are_no_regular_file_are_refused(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(BadInput, match="no regular file"):
        read_dump(path)
