"""The screen at 80x24 and 120x40 as text without colour; python -m tests.approvals.screen rewrites it."""

import pytest

from tests.approvals.screen.scenes import FOLDER, SIZES, path_of, scenes


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_screen_is_as_its_snapshots(size: tuple[int, int]) -> None:
    shown = scenes(size)
    width, height = size
    for name, text in shown.items():
        assert text == path_of(name, size).read_text(), name
        assert len(text.splitlines()) <= height
        assert max(map(len, text.splitlines())) <= width


def test_no_snapshot_is_left_over() -> None:
    named = {path_of(name, size).name for size in SIZES for name in scenes(size)}
    assert {path.name for path in FOLDER.iterdir()} == named
