"""A training whose recorder fails: ``failing.py RUN clean|full-disk|file-limit|old-torch``; prints sums."""

import resource
import signal
import sys
import types
from pathlib import Path

RUN, HOW = Path(sys.argv[1]), sys.argv[2]
sys.path.append(str(RUN / "hooks"))
from plumbline_recorder.training_recorder import TrainingRecorder  # noqa: E402 - the path is set first

records = RUN / "records/rank-00000"
records.mkdir(parents=True)
if HOW == "full-disk":
    (records / "steps.jsonl").symlink_to("/dev/full")
if HOW == "old-torch":
    import torch

    del sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook
job = {"settings": {"record_steps": [1, 2]}}
recorder = TrainingRecorder(types.SimpleNamespace(records=records, job=job, rank=0, world_size=1))
recorder.install()

import torch  # noqa: E402 - after the recorder, as in a job

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if HOW == "file-limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
for _ in range(3):
    ids = torch.randint(0, 50, (2, 8))
    loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
recorder.close()
print([value.detach().double().sum().item().hex() for value in model.parameters()], torch.rand(1).item())
