"""A workspace with one real finding: the embedded release, an export that spoils a tensor, its verdict."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from checks.check import silent
from checks.verdict import Outcome, Verdict
from plumbline_mcp.engines import foreground
from plumbline_mcp.findings.finding import Proposal
from plumbline_mcp.findings.proposing import propose
from plumbline_mcp.findings.records import StoredFinding
from plumbline_mcp.scan.example_release import build
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.small_pack import launch

TENSOR = "model.layers.1.self_attn.q_proj.weight"
PROPOSER = "agent-of-the-target"
CAUSE = "the exporter of framework fault-maker doubles one query projection"
TITLE = "A query projection is doubled on the way out"
FIX = "leave the weights of layer one alone"

_SPOIL = f"""
import json, shutil, struct
from pathlib import Path
shutil.copytree(job['inputs']['model'], output, dirs_exist_ok=True)
for path in sorted(Path(output).glob('*.safetensors')):
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack('<Q', raw[:8])
    header = json.loads(raw[8:8 + length])
    if {TENSOR!r} in header:
        first, end = header[{TENSOR!r}]['data_offsets']
        for at in range(8 + length + first, 8 + length + end):
            raw[at] ^= 0x01
        path.write_bytes(raw)
print('exported to', output, 'of', job['run_id'])
"""


@dataclass(frozen=True)
class Faulty:
    """The workspace and what is in it."""

    home: Path
    workspace: Workspace
    verdict: Verdict
    run_id: str
    model: Path
    target: Path


def make(folder: Path, kind: str = "real") -> Faulty:
    """Build the release, run the job, judge it."""
    target = folder / "secret-target-folder"
    model, workload = target / "released-model", target / "conversations.jsonl"
    target.mkdir(parents=True)
    build({"model": str(model), "workload": str(workload), "rows": 6, "spec": {"family": "llama"}}, silent)
    workspace = Workspace.open(folder / "home-of-the-operator", kind=kind)
    job = launch(target, sys.executable, _SPOIL, inputs={"model": model}, target={"target": "secret.toml"})
    run_id = anyio.run(foreground.run, workspace, job).job.run_id
    inputs: dict[str, Any] = {
        "original": str(model),
        "export": str(workspace.runs / run_id),
        "framework": str(target / "pack"),
    }
    verdict = anyio.run(run_check, workspace, "export", inputs)
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    return Faulty(workspace.home, workspace, verdict, run_id, model, target)


def proposal(faulty: Faulty, **changed: Any) -> Proposal:
    """What an agent would say about it."""
    given: dict[str, Any] = {
        "pattern": 6,
        "silent": True,
        "title": TITLE,
        "cause": CAUSE,
        "cause_place": "fault_maker/export.py line 31",
        "fix": FIX,
        "cheapest_check": "check export at learning rate 0",
        "also_check": ("the same exporter with sharded weights",),
        "verdicts": (faulty.verdict.id,),
    }
    return Proposal.model_validate(given | changed)


def found(faulty: Faulty, **changed: Any) -> StoredFinding:
    """A proposed finding."""
    return propose(faulty.workspace, proposal(faulty, **changed), PROPOSER)


def texts_of(value: Any) -> set[str]:
    """Every text in a value, for leak searches."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {text for inner in value.values() for text in texts_of(inner)} | set(map(str, value))
    if isinstance(value, list | tuple):
        return {text for inner in value for text in texts_of(inner)}
    return set()


def as_plain(model: Any) -> Any:
    """A model as plain data."""
    return json.loads(model.model_dump_json())
