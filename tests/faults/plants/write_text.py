"""Writes a text to a file. Arguments: folder, file in it, text."""

import sys
from pathlib import Path

path = Path(sys.argv[1], sys.argv[2])
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(sys.argv[3], encoding="utf-8")
