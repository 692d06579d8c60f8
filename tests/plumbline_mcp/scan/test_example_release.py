"""The embedded release: the same bytes each time, loadable without a complaint, decidable in every turn."""

import copy
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from safetensors import safe_open

from checks.check import silent
from plumbline_mcp.scan.example_release import build, write_release
from plumbline_mcp.scan.example_spec import ReleaseSpec
from plumbline_mcp.scan.example_workload import conversations

_BUILD = """
import sys
from pathlib import Path
from plumbline_mcp.scan.example_release import write_release
write_release(Path(sys.argv[1]))
assert not {"torch", "transformers"} & set(sys.modules), "the release needs no torch"
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    build({"model": str(folder), "workload": str(folder.parent / "workload.jsonl"), "rows": 8}, silent)
    return folder


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _stored(folder: Path) -> dict[str, tuple[str, list[int]]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                piece = file.get_slice(name)
                found[name] = (piece.get_dtype(), piece.get_shape())
    return found


def test_another_process_builds_the_same_bytes(release: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", _BUILD, str(tmp_path / "again")], check=True, env=environment)
    assert _digests(tmp_path / "again") == _digests(release)


def test_the_files_have_the_official_layout(release: Path) -> None:
    stored = _stored(release)
    experts = "model.layers.3.mlp.experts"
    assert stored[f"{experts}.gate_up_proj_blocks"] == ("U8", [4, 128, 2, 16])
    assert stored[f"{experts}.gate_up_proj_scales"] == ("U8", [4, 128, 2])
    assert stored[f"{experts}.down_proj_blocks"] == ("U8", [4, 64, 2, 16])
    assert stored[f"{experts}.down_proj_bias"] == ("BF16", [4, 64])
    assert stored["model.layers.0.self_attn.sinks"] == ("BF16", [4])
    index = json.loads((release / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(stored)
    assert len(set(index.values())) == 3


def test_a_variant_has_a_down_projection_that_is_not_square(tmp_path: Path) -> None:
    write_release(tmp_path, ReleaseSpec(intermediate=96))
    assert _stored(tmp_path)["model.layers.0.mlp.experts.down_proj_blocks"] == ("U8", [4, 64, 3, 16])


def test_no_quantized_tensor_is_constant_and_every_code_occurs(release: Path) -> None:
    for path in release.glob("*.safetensors"):
        for name, values in _bytes(path).items():
            assert len(np.unique(values)) > 3, name
            if name.endswith("_blocks"):
                assert len(np.unique(np.concatenate([values.ravel() & 15, values.ravel() >> 4]))) == 16


def _bytes(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with safe_open(path, "np") as file:
        quantized = [name for name in file.keys() if file.get_slice(name).get_dtype() == "U8"]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in quantized}


def test_values_are_rounded_to_bfloat16_as_torch_does() -> None:
    import torch

    from plumbline_mcp.scan.example_storage import bfloat16

    values = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    ours = np.frombuffer(bfloat16(values).data, np.int16)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(ours, theirs)


def test_transformers_builds_the_bf16_release_with_nothing_missing_or_unexpected(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_release(tmp_path, ReleaseSpec(quantized=False))
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert {name for name, _ in model.named_parameters()} == set(_stored(tmp_path))


def test_the_markers_cover_what_the_model_generates_and_every_turn_is_decidable(release: Path) -> None:
    """Against the prefix difference of two renders, tokenised by the tokenizers library itself."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(release)
    reference = tokenizers.Tokenizer.from_file(str(release / "tokenizer.json"))
    stops = set(json.loads((release / "generation_config.json").read_text())["eos_token_id"])

    def ids(row: dict[str, Any], turns: int, prompt: bool = False) -> list[int]:
        text = tokenizer.apply_chat_template(
            copy.deepcopy(row["messages"][:turns]),
            tools=row.get("tools"),
            tokenize=False,
            add_generation_prompt=prompt,
        )
        encoded: list[int] = reference.encode(text, add_special_tokens=False).ids
        return encoded

    for row in conversations(48):
        whole = ids(row, len(row["messages"]))
        expected = [0] * len(whole)
        for turn, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                prompt, reply = ids(row, turn, prompt=True), ids(row, turn + 1)
                assert whole[: len(reply)] == reply
                assert reply[: len(prompt)] == prompt
                assert [token in stops for token in reply[len(prompt) :]].index(True) == len(reply) - len(
                    prompt
                ) - 1
                expected[len(prompt) : len(reply)] = [1] * (len(reply) - len(prompt))
        seen = tokenizer.apply_chat_template(
            copy.deepcopy(row["messages"]),
            tools=row.get("tools"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert seen["input_ids"] == whole
        assert seen["assistant_masks"] == expected
