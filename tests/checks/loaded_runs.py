"""Run folders of the procedure load, written from real models by a small writer of the record format."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from checks.check import evaluate
from checks.load import CHECK, LoadInputs
from checks.verdict import Problem, Verdict

Shard = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and local shape."""


def raw(value: torch.Tensor) -> bytes:
    """Bytes of a tensor in C order."""
    return bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def named(model: torch.nn.Module) -> Iterable[tuple[str, str, bool, torch.Tensor]]:
    """Every name of every parameter and buffer."""
    for name, value in model.named_parameters(remove_duplicate=False):
        yield name, "parameter", True, value
    for prefix, module in model.named_modules():
        for name, value in module._buffers.items():
            if value is not None:
                full = f"{prefix}.{name}" if prefix else name
                yield full, "buffer", name not in module._non_persistent_buffers_set, value


class RunWriter:
    """Writes one run folder; `seal` writes its manifest."""

    def __init__(self, folder: Path, *, world_size: int = 1, **settings: Any) -> None:
        self.folder, self.world_size = folder, world_size
        self.write("job.json", json.dumps(job(world_size, settings)))
        for rank in range(world_size):
            self.exit(rank)
            self.environment(rank)
            self.write(f"records/rank-{rank:05d}/recorder.json", json.dumps({"state": "complete"}))

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def exit(self, rank: int, **fields: Any) -> None:
        ended = {
            "rank": rank,
            "code": 0,
            "signal": None,
            "timed_out": False,
            "host": "h",
            "started": "",
            "ended": "",
        }
        self.write(f"exit/rank-{rank:05d}.json", json.dumps(ended | fields))

    def environment(self, rank: int, version: str = transformers.__version__) -> None:
        about = {
            "format": 1,
            "distributions": [{"name": "transformers", "version": version, "location": "x"}],
        }
        self.write(f"records/rank-{rank:05d}/environment.json", json.dumps(about | {"stand_ins": []}))

    def model(
        self,
        model: torch.nn.Module,
        when: str = "loaded-1",
        *,
        rank: int = 0,
        shards: Mapping[str, Shard] | None = None,
        whole: bool = True,
        stride: int = 3,
    ) -> None:
        """Record a model; ``shards`` gives the part of some tensors that this rank holds."""
        lines, tensors, places = [], {}, dict[int, str]()
        for name, kind, persistent, value in named(model):
            box = (shards or {}).get(name)
            mine = value.detach() if box is None else cut(value.detach(), box)
            first = places.setdefault(value.data_ptr(), name)
            placement = None
            if box is not None:
                placement = {"mesh": [self.world_size], "dims": ["dp"], "kinds": ["shard(0)"]}
                placement |= {"local_shape": list(box[1]), "offset": list(box[0])}
            floating = value.is_floating_point()
            flat = mine.reshape(-1)[::stride].double().tolist() if mine.numel() else []
            lines.append(
                {
                    "when": when, "name": name, "kind": kind, "persistent": persistent,
                    "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."),
                    "requires_grad": value.requires_grad, "placement": placement,
                    "sha256": hashlib.sha256(raw(mine)).hexdigest(),
                    "nonfinite": int((~torch.isfinite(mine.float())).sum()) if floating else 0,
                    "elements": mine.numel(), "same_as": None if first == name else first,
                    "sample": None if whole else {"stride": stride, "values": flat},
                }
            )  # fmt: skip
            if first == name:
                tensors[name] = mine.contiguous().clone()
        self.append(f"records/rank-{rank:05d}/model.jsonl", lines)
        if whole:
            path = self.folder / f"records/rank-{rank:05d}/{when}-000.safetensors"
            save_file(tensors, path, metadata={"format": "plumbline-tensors", "version": "1"})

    def seal(self) -> Path:
        """Write the manifest."""
        files = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name != "manifest.json":
                data = path.read_bytes()
                files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        self.write("manifest.json", json.dumps({"format": 1, "files": files}))
        return self.folder


def cut(value: torch.Tensor, box: Shard) -> torch.Tensor:
    """The part of a tensor in a box."""
    return value[tuple(slice(start, start + length) for start, length in zip(*box, strict=True))]


def job(world_size: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A job of the procedure load."""
    return {
        "format": 1, "run_id": "load-0001", "procedure": "load", "framework": "transformers", "target": {},
        "settings": dict(settings), "inputs": {}, "output": "output", "digests": {}, "interpreter": "/python",
        "plants": [], "world_size": world_size, "time_limit_s": 60, "system_version": "", "approval": "none",
        "engine": "local", "confinement": "none",
    }  # fmt: skip


def recorded(folder: Path, model: torch.nn.Module, *, whole: bool = True, **settings: Any) -> Path:
    """A sealed run of one rank in which both loads gave the same model."""
    run = RunWriter(folder, **settings)
    for when in ("loaded-1", "loaded-2"):
        run.model(model, when, whole=whole)
    return run.seal()


def load_check(run: Path, model: Path, **inputs: Any) -> Verdict:
    """The verdict of the check; whatever it finds says what to do next."""
    verdict = evaluate(CHECK, LoadInputs(run=run, model=model, **inputs))
    assert all(problem.next_step for _, problem in verdict.problems())
    return verdict


def problem(verdict: Verdict, code: str) -> Problem:
    """The first problem of a code."""
    return next(each for _, each in verdict.problems() if each.code == code)
