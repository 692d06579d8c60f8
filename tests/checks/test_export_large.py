"""A sharded pair of 20 GB each, compared under 2 GB of anonymous memory. Needs 40 GB of disk."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

GIGABYTES = int(os.environ.get("PLUMBLINE_LARGE_GB", "20"))
_HIDDEN, _INTERMEDIATE = 4096, 14336
_SHARD_LAYERS = 4

_MEASURE = """
import json, sys, threading, time
from pathlib import Path
from checks.check import evaluate
from checks.export import CHECK, ExportInputs

peak = 0
def sample():
    global peak
    while True:
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(status.split("RssAnon:")[1].split()[0]) * 1024)
        time.sleep(0.02)

threading.Thread(target=sample, daemon=True).start()
verdict = evaluate(CHECK, ExportInputs(original=Path(sys.argv[1]), export=Path(sys.argv[2])))
print(json.dumps({"peak": peak, "seconds": verdict.seconds, "outcome": verdict.outcome,
                  "reason": verdict.reason, "parts": {part.name: part.outcome for part in verdict.parts},
                  "places": [str(problem.place) for _, problem in verdict.problems()]}))
"""


def _layer(index: int) -> dict[str, tuple[int, ...]]:
    prefix = f"model.layers.{index}"
    square, wide = (_HIDDEN, _HIDDEN), (_INTERMEDIATE, _HIDDEN)
    return {
        **{f"{prefix}.self_attn.{name}_proj.weight": square for name in "qkvo"},
        f"{prefix}.mlp.gate_proj.weight": wide,
        f"{prefix}.mlp.up_proj.weight": wide,
        f"{prefix}.mlp.down_proj.weight": (_HIDDEN, _INTERMEDIATE),
        f"{prefix}.input_layernorm.weight": (_HIDDEN,),
        f"{prefix}.post_attention_layernorm.weight": (_HIDDEN,),
    }


def _write_shard(path: Path, tensors: dict[str, tuple[int, ...]], noise: np.ndarray) -> None:
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = int(np.prod(shape)) * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for number, shape in enumerate(tensors.values()):
            left = int(np.prod(shape))
            while left:
                piece = np.roll(noise, number + left % 97)[: min(left, noise.size)]
                file.write(piece.tobytes())
                left -= piece.size


def _write(folder: Path, gigabytes: int) -> None:
    """A llama of that size in bf16, shard by shard; every byte is written."""
    folder.mkdir()
    layer_bytes = sum(int(np.prod(shape)) * 2 for shape in _layer(0).values())
    layers = gigabytes * 10**9 // layer_bytes
    noise = np.random.default_rng(0).integers(0x3C00, 0x3F80, 2**22, dtype=np.uint16)
    weight_map = {}
    for first in range(0, layers, _SHARD_LAYERS):
        tensors: dict[str, tuple[int, ...]] = {}
        for layer in range(first, min(layers, first + _SHARD_LAYERS)):
            tensors |= _layer(layer)
        name = f"model-{first:05d}.safetensors"
        _write_shard(folder / name, tensors, noise)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": _HIDDEN}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    original, export = tmp_path / "original", tmp_path / "export"
    _write(original, GIGABYTES)
    shutil.copytree(original, export)
    yield original, export
    shutil.rmtree(tmp_path)


def _measure(original: Path, export: Path) -> dict[str, object]:
    command = [sys.executable, "-c", _MEASURE, str(original), str(export)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    print(result)
    return result


@pytest.mark.large
@pytest.mark.skipif(
    "PLUMBLINE_LARGE_GB" not in os.environ, reason="set PLUMBLINE_LARGE_GB=20 (40 GB of disk)"
)
def test_a_sharded_pair_of_20_gb_is_compared_under_2_gb_of_anonymous_memory(pair: tuple[Path, Path]) -> None:
    original, export = pair
    clean = _measure(original, export)
    assert clean["parts"]["values"] == "pass"
    assert clean["peak"] < 2 * 10**9

    last = sorted(export.glob("*.safetensors"))[-1]
    with last.open("r+b") as file:
        file.seek(-9000, 2)
        file.write(b"\x00\x40")
    changed = _measure(original, export)
    assert changed["outcome"] == "fail"
    assert changed["parts"]["values"] == "fail"
    assert changed["peak"] < 2 * 10**9
