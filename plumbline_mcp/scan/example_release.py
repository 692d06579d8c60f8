"""The embedded release: a tiny model in its official on-disk format, made in seconds without a download.

It exists so that a scan can be tried, and each fault planted, on any machine. Two builds of one spec have
the same bytes. It runs in a worker: it needs numpy and tokenizers, never torch.
"""

import json
from pathlib import Path
from typing import Any

from checks.check import Progress, silent
from plumbline_mcp.scan import example_deepseek, example_gpt_oss, example_llama
from plumbline_mcp.scan.example_spec import ReleaseSpec
from plumbline_mcp.scan.example_storage import write_shards
from plumbline_mcp.scan.example_tokenizer import (
    CALL,
    MERGED_VOCABULARY,
    PAD,
    RETURN,
    SPECIAL_TOKENS,
    token_ids,
    write_tokenizer,
)
from plumbline_mcp.scan.example_workload import WORKLOAD_ROWS, write_workload

_TEMPLATES = Path(__file__).parent / "example"
_FAMILIES = {"gpt_oss": example_gpt_oss, "llama": example_llama, "deepseek_v3": example_deepseek}


def _generation_config(spec: ReleaseSpec) -> dict[str, Any]:
    ids = token_ids()
    stops = (RETURN, PAD, CALL) if spec.template == "own stop" else ("<|user|>", "<|observation|>", PAD)
    return {
        "bos_token_id": ids["<|startoftext|>"],
        "do_sample": True,
        "eos_token_id": [ids[stop] for stop in stops],
        "pad_token_id": ids[RETURN if spec.pad_is_stop else PAD],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_release(folder: Path, spec: ReleaseSpec | None = None, progress: Progress = silent) -> None:
    """Write the release into an empty or new folder."""
    spec = spec or ReleaseSpec()
    folder.mkdir(parents=True, exist_ok=True)
    progress(0, 3, "training the embedded release's tokenizer")
    write_tokenizer(folder, spec.tokenizer_class, RETURN if spec.pad_is_stop else PAD)
    template = "chat_template.jinja" if spec.template == "own stop" else "next_header.jinja"
    (folder / "chat_template.jinja").write_bytes((_TEMPLATES / template).read_bytes())
    progress(1, 3, "writing its configuration")
    family = _FAMILIES[spec.family]
    _write_json(folder / "config.json", family.config(spec))
    _write_json(folder / "generation_config.json", _generation_config(spec))
    progress(2, 3, "writing its weights")
    write_shards(folder, dict(family.tensors(spec)), spec.shards)
    progress(3, 3, "the embedded release is ready")


def build(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Worker entry: ``{"model": folder, "workload": file, "spec": {...}, "rows": n}`` -> the two paths."""
    spec = ReleaseSpec.model_validate(payload.get("spec", {}))
    model, workload = Path(payload["model"]), Path(payload["workload"])
    write_release(model, spec, progress)
    rows = write_workload(workload, int(payload.get("rows", WORKLOAD_ROWS)), spec.seed)
    return {"model": str(model), "workload": str(workload), "rows": rows}


if MERGED_VOCABULARY + len(SPECIAL_TOKENS) > ReleaseSpec().shape.vocabulary:
    raise AssertionError("the model's vocabulary is smaller than the tokenizer's")
