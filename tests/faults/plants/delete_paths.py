"""Deletes files and folders. Arguments: folder, patterns."""

import shutil
import sys
from pathlib import Path

for pattern in sys.argv[2:]:
    for path in list(Path(sys.argv[1]).glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
