"""Run folders of plain torch trainings, made by real processes under the real recorder (`plain_training`)."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("plain_training.py")
RECIPE: dict[str, Any] = {
    "optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1, "steps": 3, "accumulation": 2,
    "max_grad_norm": 1.0, "schedule": "linear", "seed": 3, "record_steps": [1, 2], "sample_elements": 0,
    "dtype": "float32", "fault": "",
}  # fmt: skip


def train_all(
    folder: Path, scenarios: Mapping[str, Mapping[str, Any]], world_size: int = 1
) -> dict[str, Path]:
    """Run every scenario, all in one process a rank, and seal a run folder of each."""
    hooks = folder / "hooks"
    shutil.copytree(ROOT / "templates" / "recorder", hooks / "plumbline_recorder", dirs_exist_ok=True)
    runs = {name: folder / name for name in scenarios}
    for name, changes in scenarios.items():
        runs[name].mkdir(parents=True)
        (runs[name] / "scenario.json").write_text(json.dumps({**RECIPE, **changes}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ""}
    meet, folders = str(folder / f"meet-{world_size}"), map(str, runs.values())
    command = [sys.executable, str(SCRIPT), str(hooks)]
    rest = [str(world_size), meet, *folders]
    started = [
        subprocess.Popen(
            [*command, str(rank), *rest],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    said = [process.communicate(timeout=900)[0] for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(said)
    for path in runs.values():
        finish(path, world_size)
    return runs


def finish(run: Path, world_size: int, framework: str = "transformers") -> None:
    """Write job.json and the exit files, and seal."""
    scenario = json.loads((run / "scenario.json").read_text())
    settings = {name: value for name, value in scenario.items() if value != ""}
    job = {"format": 1, "run_id": run.name, "procedure": "train_step", "framework": framework,
           "settings": settings, "world_size": world_size}  # fmt: skip
    (run / "job.json").write_text(json.dumps(job))
    (run / "exit").mkdir(exist_ok=True)
    for rank in range(world_size):
        (run / f"exit/rank-{rank:05d}.json").write_text(json.dumps({"rank": rank, "code": 0}))
    seal(run)


def seal(run: Path) -> None:
    """Write the manifest over every file of a run."""
    files = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_file() and name != "manifest.json":
            data = path.read_bytes()
            files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (run / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
