"""Removes one tensor from the exported files. Arguments: folder, tensor."""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

folder, name = Path(sys.argv[1]), sys.argv[2]
for path in folder.glob("*.safetensors"):
    tensors = load_file(path)
    if tensors.pop(name, None) is not None:
        save_file(tensors, path, {"format": "pt"})
