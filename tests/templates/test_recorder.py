"""The recorder: what it writes fits the schema, other libraries read it, and Python 3.9 runs it."""

import importlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file

from checks.records.rows_safetensors import read_safetensors
from checks.records.runs import RECORD_FORMAT, Exit, Job
from plumbline_mcp.engines.launching import RECORDER

SCHEMA = json.loads((RECORDER / "record-schema.json").read_text())
OLD_PYTHONS = [
    Path.home() / ".pyenv/versions/3.9.18/bin/python",
    *map(Path, filter(None, [shutil.which("python3.9")])),
]


def fits(what: str, record: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA | {"$ref": f"#/$defs/{what}"}).validate(record)


def is_python_3_9(path: Path) -> bool:
    """Whether it really is one: a launcher of that name may have nothing to launch."""
    asked = [path, "-I", "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 9))"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def header(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    found: dict[str, Any] = json.loads(raw[8 : 8 + length])
    return found


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recorder as a job has it: a package in the hooks folder."""
    hooks = tmp_path / "hooks"
    shutil.copytree(RECORDER, hooks / "plumbline_recorder", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(hooks))
    yield hooks
    for name in [name for name in sys.modules if name.startswith("plumbline_recorder")]:
        del sys.modules[name]


def module(name: str) -> ModuleType:
    return importlib.import_module(f"plumbline_recorder.{name}")


def write_rows(folder: Path) -> None:
    with module("rows_writer").RowsWriter(folder) as writer:
        writer.add(1, 0, [5, 6, 7], [-100, 6, 7], [4], attention_mask=[1, 1, 0], position_ids=[0, 1, 2])
        writer.add(
            1,
            1,
            [8, 9, 1, 2],
            [-100, 9, -100, 2],
            [0, -1],
            document_ends=[2],
            attention_mask=[1, 1, 1, 1],
            position_ids=[0, 1, 0, 1],
        )
        writer.add(2, 0, [3], [3], [4], attention_mask=[1], position_ids=[0])


def test_rows_hold_what_was_added_as_another_library_reads_it(recorder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "records")
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == [
        "rows-1-000.safetensors",
        "rows-2-000.safetensors",
    ]
    tensors = load_file(tmp_path / "records/rows-1-000.safetensors")
    expected = {
        "input_ids": np.array([5, 6, 7, 8, 9, 1, 2], np.int32),
        "labels": np.array([-100, 6, 7, -100, 9, -100, 2], np.int32),
        "attention_mask": np.array([1, 1, 0, 1, 1, 1, 1], np.uint8),
        "position_ids": np.array([0, 1, 2, 0, 1, 0, 1], np.int32),
        "offsets": np.array([0, 3, 7], np.int64),
        "document_offsets": np.array([0, 3, 5, 7], np.int64),
        "row_ids": np.array([4, 0, -1], np.int32),
        "epochs": np.array([1, 1], np.int32),
        "batches": np.array([0, 1], np.int32),
    }
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        assert tensors[name].dtype == values.dtype
        np.testing.assert_array_equal(tensors[name], values)


def test_rows_fit_the_schema_and_the_checks_read_them(recorder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "records")
    for path in (tmp_path / "records").iterdir():
        fits("rows", header(path))
    first, packed = read_safetensors(tmp_path / "records/rows-1-000.safetensors").sequences
    assert (first.epoch, first.batch, list(first.rows)) == (1, 0, [4])
    assert list(packed.ids) == [8, 9, 1, 2]
    assert list(packed.rows) == [0, -1]


def test_a_row_file_of_another_version_fits_no_schema(recorder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "records")
    changed = header(tmp_path / "records/rows-1-000.safetensors")
    changed["__metadata__"]["version"] = "2"
    with pytest.raises(jsonschema.ValidationError):
        fits("rows", changed)


def test_a_long_epoch_is_written_in_several_files(
    recorder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("rows_writer"), "FLUSH_TOKENS", 10)
    with module("rows_writer").RowsWriter(tmp_path / "records") as writer:
        for number in range(7):
            writer.add(1, number, [number] * 4, [number] * 4, [number])
    files = sorted((tmp_path / "records").iterdir())
    assert [path.name for path in files] == [f"rows-1-{part:03d}.safetensors" for part in range(3)]
    assert np.concatenate([load_file(path)["row_ids"] for path in files]).tolist() == list(range(7))


@pytest.mark.parametrize(
    "second",
    [
        {"input_ids": [1, 2], "labels": [1], "row_ids": [0]},
        {"input_ids": [1], "labels": [1], "row_ids": [0, 1]},
        {"input_ids": [1], "labels": [1], "row_ids": [0], "attention_mask": [1]},
    ],
)
def test_a_sequence_whose_arrays_do_not_fit_is_refused(
    recorder: Path, tmp_path: Path, second: dict[str, Any]
) -> None:
    def two_sequences() -> None:
        with module("rows_writer").RowsWriter(tmp_path / "records") as writer:
            writer.add(1, 0, [1], [1], [0])
            writer.add(1, 1, **second)

    with pytest.raises(ValueError):
        two_sequences()
    assert list((tmp_path / "records").iterdir()) == [], "a failed pass leaves no file that looks whole"


def test_the_environment_record_fits_the_schema_and_holds_no_other_variable(
    recorder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.setenv("TZ", "UTC")
    module("environment_record").write_environment(tmp_path, "json", ["a for b"])
    record = json.loads((tmp_path / "environment.json").read_text())
    fits("environment", record)
    assert record["variables"]["TZ"] == "UTC"
    assert "hush" not in json.dumps(record)
    assert {"name": "numpy", "version": np.__version__} == {
        name: next(found for found in record["distributions"] if found["name"] == "numpy")[name]
        for name in ("name", "version")
    }


def test_progress_is_written_at_most_a_few_times_a_second(recorder: Path, tmp_path: Path) -> None:
    progress = module("progress").Progress(tmp_path / "progress.jsonl")
    for number in range(1000):
        progress(number + 1, 1000, "rows")
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert lines[0] == [1, 1000, "rows"]
    assert lines[-1] == [1000, 1000, "rows"]
    assert len(lines) < 20


def test_a_line_holds_what_json_does_not_know(recorder: Path) -> None:
    line_of = module("journal").line_of
    odd = {"loss": float("nan"), "norms": [1.5, float("-inf")], 3: ("a", 2), "path": Path("x"), "none": None}
    assert json.loads(line_of(odd)) == {
        "loss": "nan", "norms": [1.5, "-inf"], "3": ["a", 2], "path": repr(Path("x")), "none": None,
    }  # fmt: skip
    finite = {"params": ["w", "b"], "lr": 1e-3, "betas": (0.9, 0.999), "fused": None, "path": Path("x")}
    assert json.loads(line_of(finite)) == {
        **finite, "betas": [0.9, 0.999], "path": repr(Path("x")),
    }  # fmt: skip


def test_reads_are_seen_by_no_dispatch_mode_and_leave_gradients_as_they_were(recorder: Path) -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    quiet, seen = module("reading").quiet, list[str]()

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    weight = torch.ones(2, requires_grad=True)
    with Listening():
        with quiet(), quiet():
            assert not (weight + 1).requires_grad
        assert seen == []
        assert (weight + 1).requires_grad
    assert len(seen) == 1
    with torch.no_grad():
        with quiet():
            pass
        assert not torch.is_grad_enabled()


def test_the_models_of_the_readers_and_the_schema_name_the_same_fields() -> None:
    assert set(Job.model_fields) == set(SCHEMA["$defs"]["job"]["properties"])
    assert set(Exit.model_fields) == set(SCHEMA["$defs"]["exit"]["properties"])
    for name in ("job", "manifest"):
        assert SCHEMA["$defs"][name]["properties"]["format"]["const"] == RECORD_FORMAT


def test_the_recorder_and_the_probe_run_on_python_3_9(recorder: Path, tmp_path: Path) -> None:
    python = next((path for path in OLD_PYTHONS if path.is_file() and is_python_3_9(path)), None)
    if python is None:
        pytest.skip("no Python 3.9 found (pyenv or python3.9 on the PATH)")
    program = f"""
import sys
sys.path.append({str(recorder)!r})
from pathlib import Path
from plumbline_recorder.environment_record import write_environment
from plumbline_recorder.procedure import Procedure
from plumbline_recorder.rows_writer import RowsWriter
with RowsWriter(Path({str(tmp_path / "records")!r})) as writer:
    writer.add(1, 0, [5, 6], [-100, 6], [0], attention_mask=[1, 1])
write_environment(Path({str(tmp_path)!r}), "json", [])
"""
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_safetensors(tmp_path / "records/rows-1-000.safetensors").sequences[0].epoch == 1
    fits("environment", json.loads((tmp_path / "environment.json").read_text()))
    request = json.dumps({"distributions": ["pip"], "module": "pip"})
    probe = [python, "-I", RECORDER / "probe_environment.py", request]
    assert subprocess.run(probe, capture_output=True, check=True).stdout.startswith(b"plumbline-probe {")
