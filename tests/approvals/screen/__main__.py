"""Rewrite the snapshots of the screen after a deliberate change: python -m tests.approvals.screen."""

from tests.approvals.screen.scenes import FOLDER, SIZES, path_of, scenes

FOLDER.mkdir(exist_ok=True)
for old in FOLDER.glob("*.txt"):
    old.unlink()
for size in SIZES:
    for name, text in scenes(size).items():
        path_of(name, size).write_text(text)
