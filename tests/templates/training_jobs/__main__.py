"""Small trainings on the CPU, run with and without the recorder: ``python -m ... OUT on|off NAME...``.

Each leaves ``OUT/<name>.<rank>.json`` with digests of the final weights, optimizer state and generators. The
recorder is taken from a folder ``hooks`` beside ``OUT``, as a job has it; each training has its own records.
"""

import hashlib
import importlib
import json
import os
import sys
import types
from pathlib import Path

OUT, RECORD = Path(sys.argv[1]), sys.argv[2] == "on"
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def new_recorder(name: str, settings: dict) -> object:
    """The recorder of one training, installed; None when nothing is to be recorded."""
    if not RECORD:
        return None
    from plumbline_recorder.training_recorder import TrainingRecorder

    records = OUT / name / "records" / f"rank-{RANK:05d}"
    job = {"settings": {"record_steps": [1, 2], **settings}}
    procedure = types.SimpleNamespace(records=records, job=job, rank=RANK, world_size=WORLD)
    recorder = TrainingRecorder(procedure)
    recorder.install()
    return recorder


def main() -> None:
    """Run the named trainings."""
    sys.path.append(str(OUT.parent / "hooks"))
    sys.dont_write_bytecode = True
    first = new_recorder(sys.argv[3], {})  # before torch is imported, as a job does it
    import torch

    torch.set_num_threads(1)
    trainings = importlib.import_module("trainings" if WORLD == 1 else "trainings_of_two")
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
    for index, name in enumerate(sys.argv[3:]):
        training = getattr(trainings, name)
        settings = getattr(training, "settings", {})
        recorder = first if index == 0 else new_recorder(name, settings)
        seed()
        model, optimizers = training()
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{name}.{RANK}.json").write_text(json.dumps(digests(model, optimizers)))
        if recorder is None:
            continue
        recorder.close()
        ours = [pair for pair in everything(torch) if isinstance(pair[1], types.FunctionType)]
        left = [name for name, value in ours if "__plumbline__" in vars(value)]
        if left:
            raise SystemExit(f"not put back: {left}")
    if WORLD > 1:
        torch.distributed.destroy_process_group()


def everything(torch: object) -> "list[tuple[str, object]]":
    """Every name of every module, and of the classes that the recorder replaces methods of."""
    classes = [torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]
    classes += torch.nn.Module.__subclasses__()
    found = [(str(kind), value) for kind in classes for value in vars(kind).values()]
    for name, module in list(sys.modules.items()):
        found += [(name + "." + key, value) for key, value in list(getattr(module, "__dict__", {}).items())]
    return found


def seed() -> None:
    """The same start for every training."""
    import random

    import numpy as np
    import torch

    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5 + RANK)


def digests(model: object, optimizers: list) -> "dict[str, str]":
    """sha256 of every parameter and buffer, of the optimizers' tensors and of the generators."""
    import random

    import numpy as np
    import torch

    weights, state = hashlib.sha256(), hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        weights.update(raw(value))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                    state.update(raw(value) if isinstance(value, torch.Tensor) else repr(value).encode())
    generators = [repr(random.getstate()), repr(np.random.get_state()), raw(torch.get_rng_state()).hex()]
    rng = hashlib.sha256("".join(generators).encode()).hexdigest()
    return {"weights": weights.hexdigest(), "state": state.hexdigest(), "rng": rng}


def raw(tensor: object) -> bytes:
    """The local bytes of a tensor."""
    import torch

    local = getattr(tensor, "_local_tensor", tensor).detach().contiguous()
    return bytes(local.reshape(-1).view(torch.uint8).numpy())


if __name__ == "__main__":
    main()
