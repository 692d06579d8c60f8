"""Run folders of the procedure build, written from real models by a small writer of the record format."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from checks.build import CHECK, BuildInputs
from checks.check import evaluate
from checks.verdict import Verdict
from tests.checks.loaded_runs import RunWriter

REFUSED = {
    "name": "plateau-without-evaluation",
    "code": 1,
    "timed_out": False,
    "said": "ValueError: lr_scheduler_type reduce_lr_on_plateau requires an eval strategy",
}
"""What transformers 5.24.0 answers to the launch that its pack cites as refused."""

Change = Callable[[Any], object]


class BuiltWriter(RunWriter):
    """Writes one run folder of the procedure build."""

    def __init__(self, folder: Path, *, world_size: int = 1, **settings: Any) -> None:
        super().__init__(folder, world_size=world_size, **settings)
        about = json.loads((folder / "job.json").read_text()) | {"procedure": "build", "run_id": "build-0001"}
        self.write("job.json", json.dumps(about))
        self.refusals(REFUSED)

    def refusals(self, *lines: dict[str, Any]) -> None:
        """Record how the launches of refused settings ended; in place of what was written before."""
        self.write("records/rank-00000/refusals.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def built(self, model: torch.nn.Module, rank: int = 0) -> None:
        """Record a model: its tensors, its configuration and its modules."""
        self.model(model, "built", rank=rank, whole=False, stride=1)
        self.append(f"records/rank-{rank:05d}/built.jsonl", built_lines(model))


def built_lines(model: Any) -> Iterator[dict[str, Any]]:
    """The lines of built.jsonl."""
    config = model.config.to_dict() if hasattr(model, "config") else None
    kind = type(model).__name__
    yield {"kind": "model", "class": kind, "training": model.training, "config": plain(config)}
    for name, part in model.named_modules():
        own = {key: value for key, value in vars(part).items() if not key.startswith("_") and is_plain(value)}
        yield {
            "kind": "module", "name": name, "class": type(part).__name__, "training": part.training,
            "linear": isinstance(part, torch.nn.Linear),
            "values": {key: value for key, value in own.items() if key != "training"},
            "adapters": getattr(part, "recorded_adapters", []),
        }  # fmt: skip


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    return json.loads(json.dumps(value, default=str))


def is_plain(value: Any) -> bool:
    """Whether an attribute is a number, a text or nothing."""
    return value is None or isinstance(value, bool | int | float | str)


def model_of(release: Path, dtype: str = "bfloat16") -> Any:
    """The release as a training step has it."""
    return AutoModelForCausalLM.from_pretrained(release, dtype=dtype).train()


def built(
    folder: Path, release: Path, change: Change = lambda model: None, *, ranks: int = 1, **settings: Any
) -> Path:
    """A sealed run whose every rank built the release, changed by ``change(model)`` on the last one."""
    settings = {"dtype": "bfloat16", **settings}
    run = BuiltWriter(folder, world_size=ranks, **settings)
    for rank in range(ranks):
        model = model_of(release, settings["dtype"])
        replaced = change(model) if rank == ranks - 1 else None
        run.built(replaced if isinstance(replaced, torch.nn.Module) else model, rank)
    return run.seal()


def build_check(run: Path, release: Path, **inputs: Any) -> Verdict:
    """The verdict of the check; whatever it finds says what to do next."""
    verdict = evaluate(CHECK, BuildInputs(run=run, model=release, **inputs))
    assert all(problem.next_step for _, problem in verdict.problems())
    return verdict
