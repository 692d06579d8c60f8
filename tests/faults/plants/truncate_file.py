"""Cuts a file to half its length. Arguments: folder, file."""

import os
import sys
from pathlib import Path

path = Path(sys.argv[1]) / sys.argv[2]
os.truncate(path, path.stat().st_size // 2)
