"""Removes a tensor but leaves it in the index (torchtitan PR 3764). Arguments: folder, tensor."""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

folder, name = Path(sys.argv[1]), sys.argv[2]
path = folder / "model.safetensors"
tensors = load_file(path)
shard = "model-00001-of-00001.safetensors"
index = {"metadata": {"total_size": 0}, "weight_map": dict.fromkeys(sorted(tensors), shard)}
del tensors[name]
save_file(tensors, folder / shard, {"format": "pt"})
(folder / "model.safetensors.index.json").write_text(json.dumps(index))
path.unlink()
