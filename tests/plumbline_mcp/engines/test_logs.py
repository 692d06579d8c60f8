"""Pages of a log: bounded, from either end, and never through a link."""

import importlib.util
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from checks.errors import NotEvaluated
from plumbline_mcp.engines.logs import MOST_BYTES, PAGE_BYTES, NotBegun, read_log
from tests.templates.test_recorder import RECORDER


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


def test_a_job_that_has_not_started_has_no_log_yet(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/supervisor.log").touch()
    with pytest.raises(NotBegun, match="no log yet: its ranks have not started"):
        read_log(tmp_path, 0)
    (tmp_path / "manifest.json").touch()
    with pytest.raises(NotEvaluated, match=r"has no log logs/rank-00000.out") as ended:
        read_log(tmp_path, 0)
    assert not isinstance(ended.value, NotBegun)


def loaded(path: Path) -> ModuleType:
    """The wrapper of a rank, which writes the logs; it is no part of our packages."""
    spec = importlib.util.spec_from_file_location("rank", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def growing(tmp_path: Path) -> Any:
    """A log of a job that keeps 1,000 bytes of each, as its rank's wrapper writes it."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "job.json").write_text('{"log_bytes": 1000}')
    return loaded(RECORDER / "rank.py").BoundedLog(tmp_path / "logs/rank-00000.out", 1000)


def pages(run: Path, limit: int) -> tuple[bytes, bytes, int, int]:
    """Head, tail, what was dropped between them and the size, read by pages of so many bytes."""
    parts, dropped, offset, size = [b"", b""], 0, 0, 1
    while offset < size:
        page = read_log(run, 0, "out", offset, limit)
        assert page.data
        assert page.offset == offset + page.dropped
        dropped += page.dropped
        parts[bool(dropped)] += page.data
        offset, size = page.next_offset, page.size
    return parts[0], parts[1], dropped, size


@pytest.mark.parametrize("limit", [7, 100, 5000])
@pytest.mark.parametrize("piece", [1, 33, 250, 777])
def test_a_growing_log_above_its_limit_shows_head_tail_and_the_gap_in_bytes(
    growing: Any, tmp_path: Path, piece: int, limit: int
) -> None:
    written = b"".join(b"%06d\n" % number for number in range(3000 // 7 + 1))[:3000]
    for begin in range(0, len(written), piece):
        growing.write(written[begin : begin + piece])
        if begin // 110 == (begin + piece) // 110 and begin + piece < len(written):
            continue
        now = written[: begin + piece]
        head, tail, dropped, size = pages(tmp_path, limit)
        assert head + tail == now if not dropped else head == now[:500]
        assert size == len(now)
        assert len(head) + dropped + len(tail) == size
        assert now.endswith(tail or head)
        assert len(tail) >= min(250, size - 500) or not dropped
        assert read_log(tmp_path, 0, "out", -5).data == now[-5:]
    before = pages(tmp_path, limit)
    growing.close()
    assert pages(tmp_path, limit) == before, "the same offsets once it is put together"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank-00000.out"]


def test_a_log_read_while_its_pieces_take_turns_is_never_told_wrong(growing: Any, tmp_path: Path) -> None:
    """Every number is written once and in order: what is shown has to be a piece of that row.

    The writer goes on with the next 200 lines when one more look has begun, so that a busy machine
    cannot let it end before it was looked at.
    """
    lines = [b"%06d\n" % number for number in range(20_000)]
    ended, begun = threading.Event(), threading.Event()

    def write() -> None:
        for number, line in enumerate(lines):
            if number % 200 == 0:
                begun.wait()
                begun.clear()
            growing.write(line)
        ended.set()

    writer = threading.Thread(target=write, daemon=True)
    whole = b"".join(lines)
    writer.start()
    looks = 0
    while not ended.is_set():
        begun.set()
        page = read_log(tmp_path, 0, "out", -300)
        assert page.data == whole[page.offset : page.next_offset]
        looks += 1
    writer.join()
    assert looks >= 100


def test_what_a_job_puts_in_the_place_of_a_tail_is_not_followed(growing: Any, tmp_path: Path) -> None:
    growing.write(b"x" * 3000)
    (tmp_path / "secret").write_text("another file")
    for end in (".tail", ".tail.old", ".tail.from"):
        path = tmp_path / f"logs/rank-00000.out{end}"
        path.unlink()
        path.symlink_to(tmp_path / "secret")
    assert pages(tmp_path, 5000) == (b"x" * 500, b"", 0, 500)
