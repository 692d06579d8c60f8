"""A training that makes an optimizer step for each line on its standard input: ``FOLDER on|off``."""

import json
import shutil
import sys
import time
import types
from pathlib import Path
from typing import Any

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
RECORDER = Path(__file__).parents[3] / "templates" / "recorder"
LAYERS, WIDTH, VOCABULARY, ROWS, LENGTH = 12, 192, 2000, 2, 32


def record() -> Any:
    """The recorder, installed; no step is recorded in full."""
    shutil.copytree(RECORDER, FOLDER / "hooks" / "plumbline_recorder")
    sys.path.append(str(FOLDER / "hooks"))
    from plumbline_recorder.training_recorder import TrainingRecorder

    job = {"settings": {"record_steps": []}}
    recorder = TrainingRecorder(
        types.SimpleNamespace(records=FOLDER / "records", job=job, rank=0, world_size=1)
    )
    recorder.install()
    return recorder


recorder = record() if HOW == "on" else None

import torch  # noqa: E402 - after the recorder, as in a job

torch.set_num_threads(1)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)


class Model(torch.nn.Module):
    """Token ids to logits through a stack of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        """The mean loss and the logits."""
        logits = self.head(self.layers(self.embedding(input_ids)))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def step() -> None:
    """Two micro-batches, clipping, one step."""
    for _ in range(2):
        ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
        (model(ids, labels=ids)["loss"] / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


for _ in sys.stdin:
    began = time.process_time()
    step()
    print(json.dumps({"processor_s": time.process_time() - began}), flush=True)
if recorder is not None:
    recorder.close()
