"""Pages of a log: bounded, from either end, and never through a link."""

import os
from pathlib import Path

import pytest

from checks.errors import NotEvaluated
from plumbline_mcp.engines.logs import MOST_BYTES, PAGE_BYTES, read_log


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank-00003.err").write_bytes(bytes(range(256)) * 8192)
    return tmp_path


@pytest.mark.parametrize(
    ("offset", "limit", "start", "length"),
    [
        (0, PAGE_BYTES, 0, PAGE_BYTES),
        (0, 10**9, 0, MOST_BYTES),
        (100, 5, 100, 5),
        (-5, 64, 2**21 - 5, 5),
        (-(10**9), 4, 0, 4),
        (10**9, 4, 2**21, 0),
        (0, -1, 0, 0),
    ],
)
def test_a_page_is_what_lies_there(run: Path, offset: int, limit: int, start: int, length: int) -> None:
    page = read_log(run, 3, "err", offset, limit)
    assert (page.offset, len(page.data), page.next_offset) == (start, length, start + length)
    assert page.size == 2**21
    assert page.data == (bytes(range(256)) * 8192)[start : start + length]


def test_the_pages_of_a_log_are_the_log(run: Path) -> None:
    whole, offset = b"", 0
    while page := read_log(run, 3, "err", offset, 300_000).data:
        whole, offset = whole + page, offset + len(page)
    assert whole == (run / "logs/rank-00003.err").read_bytes()


def test_what_is_no_log_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("another file")
    (run / "logs/rank-00000.out").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "logs/rank-00001.out")
    (run / "logs/rank-00002.out").mkdir()
    for rank in (0, 1, 2, 9, None):
        with pytest.raises(NotEvaluated) as refused:
            read_log(run, rank)
        assert "rank-00003.err" in refused.value.next_step
