"""Appends a line to a file. Arguments: folder, pattern of the file, line."""

import sys
from pathlib import Path

(path,) = Path(sys.argv[1]).glob(sys.argv[2])
with path.open("a", encoding="utf-8") as file:
    file.write(sys.argv[3] + "\n")
