"""A training script that knows nothing of the recorder; imports everything by name before it.

``foreign.py RESULTS`` leaves what each rank ended with in ``RESULTS/<rank>``: ranks that share a stream may
write into each other's lines.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_


def main() -> None:
    torch.manual_seed(0)
    several = "RANK" in os.environ
    if several:
        torch.distributed.init_process_group("gloo")
    model = nn.Sequential(nn.Embedding(20, 8), nn.Dropout(0.1), nn.Linear(8, 20))
    called = nn.parallel.DistributedDataParallel(model) if several else model
    rows = [torch.randint(0, 20, (6,)) for _ in range(8)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in torch.utils.data.DataLoader(rows, batch_size=2, num_workers=1):
        loss = cross_entropy(called(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    sums = [value.detach().double().sum().item().hex() for value in model.parameters()]
    result = Path(sys.argv[1], os.environ.get("RANK", "0"))
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(f"{sums} {torch.rand(1).item()}")
    if several:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
