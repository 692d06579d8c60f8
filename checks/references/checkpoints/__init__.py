"""Checkpoints read, decoded and compared by our own code: nothing here is shared with a framework.

Reading: `header` (the safetensors header), `tensors` (the bytes of one), `folder` and `sources` (what a check
was given). Meaning: `formats` and `layouts` (numbers from codes and scales), `merging` (adapters),
`expectation` (what an export has to hold). Comparing: `naming`, `comparing`, `differences`, `values`,
`configs`, `vocabularies`, `tokenizer_files`, `tokenizer_loading`, `reload`. Faults that the check injects:
`planted`. Parts of the verdict that rest on small files: `document_parts`.
"""
