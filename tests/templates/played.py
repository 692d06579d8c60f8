"""Plays the small trainings with and without the recorder, and reads what it wrote."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.templates.test_recorder import RECORDER

JOBS = Path(__file__).parent / "training_jobs"
QUIET = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


def play(place: Path, names: tuple[str, ...], ranks: int) -> None:
    """Run the trainings with and without the recorder, below ``on`` and ``off``."""
    shutil.copytree(
        RECORDER, place / "hooks/plumbline_recorder", ignore=shutil.ignore_patterns("__pycache__")
    )
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    for how in ("off", "on"):
        command = [sys.executable, *launcher, str(JOBS), str(place / how), how, *names]
        done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]


def records(place: Path, name: str, rank: int = 0) -> Path:
    return place / "on" / name / "records" / f"rank-{rank:05d}"


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    path = folder / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def step_file(folder: Path, step: int = 1) -> dict[str, np.ndarray]:
    return load_file(folder / f"step-{step:06d}.safetensors")


def metadata(folder: Path, step: int = 1) -> dict[str, str]:
    with safe_open(folder / f"step-{step:06d}.safetensors", "numpy") as file:
        found: dict[str, str] = file.metadata()
        return found
