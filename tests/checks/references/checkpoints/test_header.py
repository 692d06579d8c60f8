"""The header parser against the safetensors library and against files made to break it."""

import json
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.references.checkpoints.header import Unreadable, parse_header, read_header

TWICE = (
    b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}'
)
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def _file(path: Path, header: object, data: bytes = bytes(8), length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def test_a_real_file_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    import numpy as np

    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 4), np.int8)}
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    header = read_header(tmp_path / "x.safetensors")
    assert header.metadata == {"format": "pt"}
    assert {name: (e.dtype, e.shape) for name, e in header.entries.items()} == {
        "a": ("F32", (2, 3)),
        "empty": ("I8", (0, 4)),
    }
    raw = (tmp_path / "x.safetensors").read_bytes()
    assert raw[header.entries["a"].begin : header.entries["a"].end] == tensors["a"].tobytes()


@pytest.mark.parametrize(
    ("header", "data", "length", "says"),
    [
        (b"", b"", 2 * 2**30, "claims a header of 2147483648 bytes"),
        ({"a": ENTRY}, b"", 10**6, "claims a header of 1000000 bytes but is"),
        (b"{not json", bytes(8), None, "no JSON"),
        (b"\xff\xfe{}", bytes(8), None, "no JSON"),
        (b"[" * 100_000, bytes(8), None, "no JSON"),
        (b"[1]", b"", None, "not an object"),
        (
            TWICE,
            b"x",
            None,
            "twice",
        ),
        ({"a": {**ENTRY, "more": 1}}, bytes(8), None, "dtype, shape and data_offsets alone"),
        ({"a": {**ENTRY, "dtype": "F99"}}, bytes(8), None, "unknown dtype"),
        ({"a": {**ENTRY, "shape": [-2]}}, bytes(8), None, "has the shape"),
        ({"a": {**ENTRY, "shape": [True]}}, bytes(8), None, "has the shape"),
        ({"a": {**ENTRY, "shape": [3]}}, bytes(8), None, "does not fill"),
        ({"a": {**ENTRY, "shape": [2**62, 2**62]}}, bytes(8), None, "does not fill"),
        ({"a": {**ENTRY, "data_offsets": [0, 2**62]}}, bytes(8), None, "has the offsets"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8), None, "has the offsets"),
        ({"a": ENTRY}, bytes(4), None, "has the offsets"),
        ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12), None, "overlaps"),
        ({"a": {**ENTRY, "data_offsets": [8, 16]}}, bytes(16), None, "belong to no tensor"),
        ({"a": ENTRY}, bytes(9), None, "after the last tensor"),
        ({"a": ENTRY, "__metadata__": {"x": 1}}, bytes(8), None, "no mapping of strings"),
    ],
)
def test_a_broken_header_is_refused_in_one_sentence(
    tmp_path: Path, header: object, data: bytes, length: int | None, says: str
) -> None:
    path = _file(tmp_path / "broken.safetensors", header, data, length)
    with pytest.raises(Unreadable, match=says) as error:
        read_header(path)
    assert error.value.file == "broken.safetensors"
    assert len(str(error.value)) < 400


def test_a_file_shorter_than_a_length_and_things_that_are_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(Unreadable, match="too short"):
        read_header(tmp_path / "short")
    with pytest.raises(Unreadable, match="no regular file"):
        read_header(tmp_path)
    with pytest.raises(Unreadable, match="cannot be opened"):
        read_header(tmp_path / "absent")


_names = st.sampled_from(["a", "b", "__metadata__"])
_values = st.one_of(
    st.none(),
    st.integers(-3, 2**70),
    st.text(max_size=4),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "U8", "F4", "nope"]),
            "shape": st.lists(st.integers(-1, 5), max_size=3),
            "data_offsets": st.lists(st.integers(0, 24), min_size=1, max_size=3),
        }
    ),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.one_of(st.binary(max_size=60), st.dictionaries(_names, _values).map(lambda d: json.dumps(d).encode()))
)
def test_any_header_is_refused_or_accepted_by_the_library_too(raw: bytes) -> None:
    """Fuzz: nothing but `Unreadable` is raised, and what we accept the library accepts."""
    data = bytes(16)
    whole = struct.pack("<Q", len(raw)) + raw
    try:
        header = parse_header("fuzz", whole, len(whole) + len(data))
    except Unreadable:
        return
    assert all(len(whole) <= e.begin <= e.end <= len(whole) + len(data) for e in header.entries.values())
    assert {name for name, _ in safetensors.deserialize(whole + data)} == set(header.entries)
