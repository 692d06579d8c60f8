"""Doubles one scale of a low-precision tensor of a checkpoint. Arguments: folder, scales, index."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

folder, name, index = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for path in folder.glob("*.safetensors"):
    tensors = load_file(path)
    if name in tensors:
        scales = tensors[name].view(-1)
        scales[index] = scales[index] + 1 if scales.dtype == torch.uint8 else scales[index] * 2
        save_file(tensors, path, {"format": "pt"})
