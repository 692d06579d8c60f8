"""Loads a small model twice, filled before: ``loading.py RUN [in-parts]``; leaves a bias and a buffer out."""

import sys
import types
from pathlib import Path

RUN, IN_PARTS = Path(sys.argv[1]), len(sys.argv) > 2
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


torch.manual_seed(1)
source = Model()
values = source.state_dict()
for number in (1, 2):
    recorder.begin_load(number)
    if IN_PARTS:
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
