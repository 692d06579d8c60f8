"""A target whose framework is a few functions: its jobs run in seconds in a Python without packages."""

from dataclasses import dataclass
from pathlib import Path

from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.plain_python import plain_python

PACK = """
format = 1
name = "small"
title = "A framework of three functions"
[framework]
distributions = ["small"]
module = "small"
[procedures.dry_run]
binding = "dry_run.py"
[procedures.export]
binding = "export.py"
[procedures.train_step]
binding = "training.py"
"""
SETTING = """
[[setting]]
name = "{name}"
procedures = [{procedures}]
status = "supported"
type = "{type}"
default = {default}
description = "of the recipe"
citation = {{ document = "the manual", version = "1" }}
"""
SETTINGS = SETTING.format(
    name="learning_rate", procedures='"dry_run", "train_step"', type="float", default="1e-3"
) + SETTING.format(name="steps", procedures='"train_step"', type="int", default="2")
DRY_RUN = """
import pathlib

def dry_run(job, recorder, progress):
    print("parsed", job["settings"]["learning_rate"])
    return ["a framework of three functions"]
"""
EXPORT = """
def export(job, output, progress):
    return []
"""
TRAINING = """
def train(job, recorder, progress):
    return []
"""
TARGET = """format = 1
framework = "{pack}"
model = "release"
workload = "rows.jsonl"
time_limit_s = 36

[environment]
python = "venv/bin/python"

[recipe]
learning_rate = 1e-5
"""


@dataclass(frozen=True)
class Planned:
    """An example workspace and a target beside it."""

    folder: Path
    workspace: Workspace
    target: Path

    @property
    def home(self) -> Path:
        return self.workspace.home

    @property
    def weights(self) -> Path:
        return self.folder / "release" / "model.safetensors"

    @property
    def pack(self) -> Path:
        return self.folder / "pack"

    def approve(self, ticket: str) -> None:
        self.workspace.approvals.decide(ticket, "approve", "example", "as planned")

    def reject(self, ticket: str, reason: str) -> None:
        self.workspace.approvals.decide(ticket, "reject", "example", reason)


def planned_target(folder: Path, home: str = "home") -> Planned:
    """Write pack, release, workload, interpreter and target; nothing is asked for yet."""
    plain_python(folder)
    pack, release = folder / "pack", folder / "release"
    pack.mkdir()
    release.mkdir()
    files = {
        "pack.toml": PACK,
        "settings.toml": SETTINGS,
        "dry_run.py": DRY_RUN,
        "export.py": EXPORT,
        "training.py": TRAINING,
    }
    for name, text in files.items():
        (pack / name).write_text(text)
    (release / "config.json").write_text("{}")
    (release / "model.safetensors").write_bytes(b"weights")
    (folder / "rows.jsonl").write_text("{}\n")
    target = folder / "target.toml"
    target.write_text(TARGET.format(pack=pack))
    return Planned(folder, Workspace.open(folder / home, kind="example"), target)
