"""A data set that Hugging Face `datasets` saved with ``save_to_disk``: Arrow stream files, memory-mapped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.errors import BadInput
from checks.records.rows import COLUMNS, Dump, Gathered
from checks.records.runs import read_json


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def read_saved_dataset(path: Path) -> Dump:
    """Every row of a saved data set. Raises `BadInput`."""
    folder = _split(path)
    gathered = Gathered(path)
    for number, (row, names) in enumerate(_rows(folder)):
        gathered.add(row, f"{folder}, row {number}", names)
    return gathered.dump("saved data set")


def _split(path: Path) -> Path:
    if (path / "state.json").is_file():
        return path
    splits = read_json(path / "dataset_dict.json").get("splits", [])
    names = [str(name) for name in splits] if isinstance(splits, list) else []
    if len(names) != 1 or Path(names[0]).name != names[0]:
        raise BadInput(
            f"{path} holds the splits {', '.join(names)[:200] or 'none'}", "name the folder of one split"
        )
    return path / names[0]


def _rows(folder: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    import pyarrow as arrow

    state = read_json(folder / "state.json")
    files = state.get("_data_files") if isinstance(state, dict) else None
    if not isinstance(files, list):
        raise BadInput(
            f"{folder}/state.json names no data files", "save the data set again with save_to_disk"
        )
    for entry in files:
        name = str(entry.get("filename")) if isinstance(entry, dict) else ""
        if Path(name).name != name or name in {"", "..", "."}:
            raise BadInput(f"{folder}/state.json names a file outside the data set: {name!r}")
        try:
            with arrow.memory_map(str(folder / name)) as source, arrow.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield from _batch_rows(batch, folder / name)
        except (arrow.ArrowInvalid, OSError) as error:
            raise BadInput(f"{folder / name} cannot be read as Arrow: {str(error)[:200]}") from error


def _batch_rows(batch: Any, path: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    import pyarrow as arrow

    present = [name for name in COLUMNS if name in batch.schema.names]
    if "input_ids" not in present:
        raise BadInput(f"{path} has no column input_ids ({', '.join(batch.schema.names)[:200]})")
    columns = {name: batch.column(name) for name in present}
    unread = [name for name in batch.schema.names if name not in COLUMNS]
    for number in range(batch.num_rows):
        row: dict[str, Any] = {}
        for name, column in columns.items():
            value = column[number]
            if not value.is_valid:
                continue
            listed = isinstance(value, arrow.ListScalar | arrow.LargeListScalar)
            row[name] = value.values.to_numpy(zero_copy_only=False) if listed else value.as_py()
        if "input_ids" not in row:
            raise BadInput(f"{path} has a row without input_ids")
        yield row, unread
