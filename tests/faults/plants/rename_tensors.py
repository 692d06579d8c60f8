"""Renames tensors: a beginning of their names by another. Arguments: folder, old, new."""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

folder, old, new = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
for path in folder.glob("*.safetensors"):
    tensors = load_file(path)
    renamed = {new + n[len(old) :] if n.startswith(old) else n: t for n, t in tensors.items()}
    save_file(renamed, path, {"format": "pt"})
