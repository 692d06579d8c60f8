"""Loads a small model twice: ``loading.py RUN [in-parts | recycled]``.

By itself it leaves a bias and a buffer out. ``recycled`` makes each tensor during the load, of memory that
held its right values just before, and copies nothing into the last row of one.
"""

import sys
import types
from pathlib import Path

RUN, HOW = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
sys.path.append(str(RUN / "hooks"))
from plumbline_recorder.training_recorder import TrainingRecorder  # noqa: E402 - the path is set first

recorder = TrainingRecorder(
    types.SimpleNamespace(records=RUN / "records/rank-00000", job={"settings": {}}, rank=0, world_size=1)
)
recorder.install()

import torch  # noqa: E402 - after the recorder, as in a job
from torch import nn  # noqa: E402 - as above


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.e = nn.Linear(3, 5), nn.Linear(5, 3), nn.Embedding(4, 3)
        self.h = nn.Linear(3, 4, bias=False)
        self.h.weight = self.e.weight
        self.register_buffer("counts", torch.zeros(3, dtype=torch.int32))
        self.register_buffer("scratch", torch.ones(2), persistent=False)


def made_of_used_memory(value: torch.Tensor, rows: int) -> nn.Parameter:
    """A parameter with some rows of ``value``; the memory of the others held them before it was freed."""
    for _ in range(8):
        del_me = value.clone()
        del del_me
    made = torch.empty_like(value)
    made[:rows] = value[:rows]
    return nn.Parameter(made)


torch.manual_seed(1)
source = Model()
values = source.state_dict()
for number in (1, 2):
    recorder.begin_load(number)
    if HOW == "recycled":
        with torch.device("meta"):
            model = Model()
        for name, value in values.items():
            owner, _, last = name.rpartition(".")
            if last == "counts":
                model.counts = value.clone()
            else:
                rows = len(value) - (name == "a.weight")
                setattr(model.get_submodule(owner), last, made_of_used_memory(value, rows))
        model.h.weight = model.e.weight
    elif HOW == "in-parts":
        model = Model()
        for prefix in ("a.", "b."):
            part = {name[2:]: value for name, value in values.items() if name.startswith(prefix)}
            getattr(model, prefix[0]).load_state_dict(part)
        rest = {name: value for name, value in values.items() if name[:2] not in ("a.", "b.")}
        model.load_state_dict(rest, strict=False)
    else:
        with torch.device("meta"):
            model = Model()
        recorder.model(model, "meta")
        model.to_empty(device="cpu")
        model.h.weight = model.e.weight
        left_out = {name: value for name, value in values.items() if name not in ("b.bias", "counts")}
        model.load_state_dict(left_out, strict=False)
    recorder.loaded(model, number)
recorder.close()
