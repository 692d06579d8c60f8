"""Removes one tensor from the files of a checkpoint and from its index. Arguments: folder, tensor."""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

folder, name = Path(sys.argv[1]), sys.argv[2]
for path in folder.glob("*.safetensors"):
    tensors = load_file(path)
    if tensors.pop(name, None) is not None:
        save_file(tensors, path, {"format": "pt"})
index = folder / "model.safetensors.index.json"
if index.exists():
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"].pop(name, None)
    index.write_text(json.dumps(content), encoding="utf-8")
