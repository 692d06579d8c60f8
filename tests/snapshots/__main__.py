"""``python -m tests.snapshots``: rewrite the snapshots, then review the diff."""

from tests.snapshots import seen

if __name__ == "__main__":
    seen.write()
