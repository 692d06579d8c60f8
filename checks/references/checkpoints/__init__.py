"""Checkpoints read, decoded and compared by our own code: nothing here is shared with a framework.

Reading: `header` (the safetensors header), `tensors` (bytes of one tensor), `folder` (a release or an
export).
Meaning: `formats` and `layouts` (numbers from codes and scales), `merging` (adapters), `declared` (formats a
framework documents). Comparing: `comparing`, `differences`, `configs`, `tokenizer_files`, `reload`.
"""
