"""Replaces cached byte code by that of another text. Arguments: folder, pattern of the source, old and new.

The header is what an import compares: time and size of the source, which stays as it is. Run with a Python of
the environment's own release, else nothing would be run in place of the source.
"""

import importlib._bootstrap_external as importing
import importlib.util
import sys
from pathlib import Path

(path,) = Path(sys.argv[1]).glob(sys.argv[2])
text = path.read_text(encoding="utf-8")
if sys.argv[3] not in text:
    raise SystemExit(f"{path} does not hold {sys.argv[3]!r}")
code = compile(text.replace(sys.argv[3], sys.argv[4], 1), str(path), "exec", dont_inherit=True)
about = path.stat()
cached = Path(importlib.util.cache_from_source(str(path)))
cached.parent.mkdir(exist_ok=True)
cached.unlink(missing_ok=True)
cached.write_bytes(importing._code_to_timestamp_pyc(code, int(about.st_mtime), about.st_size))
