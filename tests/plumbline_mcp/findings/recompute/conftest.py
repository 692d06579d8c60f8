import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.checks import tiny_release
from tests.checks.export_pairs import edit_json, edited, write_gpt_oss_pair, write_llama
from tests.checks.loaded_runs import RunWriter
from tests.checks.test_export_adapters import _adapter, _merged
from tests.checks.test_optimizer_step import BROKEN, BROKEN_PAIRS, CLEAN, CLEAN_PAIRS
from tests.checks.trained_runs import train_all
from tests.plumbline_mcp.findings.recompute import judged
from tests.plumbline_mcp.findings.recompute.builds import judged_builds
from tests.plumbline_mcp.findings.recompute.judged import Judged, Tensors

CLEAN_ONES = (
    "adamw", "adam", "sgd-nesterov", "adafactor", "torch-adafactor", "muon", "autocast", "bf16", "smoothed",
    "lora", "sampled", "transposed", "masters", "stochastic-rounding", "kahan", "kahan-later", "cosine",
    "skips-fused", "skips-of-two", "skips-of-two-fused",
)  # fmt: skip
CLEAN_TWOS = ("ddp", "fsdp2", "fsdp2-bf16-sampled")
BROKEN_ONES = (
    "mean-of-means", "not-a-number", "uneven-tokens", "times-accumulation", "no-zero-grad", "decay-on-norms",
    "skipped-group", "coupled-decay", "stale-optimizer", "frozen-trained", "not-clipped", "weights-rounded",
    "state-cleared", "smoothing-left-out", "all-masked", "logged-doubled", "adapter-scaling", "eval-mode",
    "kahan-without-compensation", "kahan-never-added", "kahan-weights-averaged", "half-update", "update-lost",
    "rounding-biased", "bf16-undeclared",
)  # fmt: skip
BROKEN_TWOS = (
    "mean-per-rank", "unsynchronised", "same-rows-alone", "no-sync-off-by-one", "schedule-per-rank",
    "local-norm",
)  # fmt: skip


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trainings of one rank: clean ones, and broken ones."""
    scenarios: dict[str, Any] = {name: CLEAN[name] for name in CLEAN_ONES}
    scenarios |= {name: BROKEN[name][0] for name in BROKEN_ONES}
    return train_all(tmp_path_factory.mktemp("single"), scenarios)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trainings of two ranks."""
    scenarios: dict[str, Any] = {name: CLEAN_PAIRS[name] for name in CLEAN_TWOS}
    scenarios |= {name: BROKEN_PAIRS[name][0] for name in BROKEN_TWOS}
    return train_all(tmp_path_factory.mktemp("pairs"), scenarios, 2)


@pytest.fixture(scope="session")
def trained(single: dict[str, Path], pairs: dict[str, Path]) -> dict[str, Judged]:
    """Every training, judged by the check."""
    return {name: judged.training(run) for name, run in {**single, **pairs}.items()}


def _transposed(tensors: Tensors) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name].copy_(tensors[name].T.clone())


def _norm_left_out(tensors: Tensors) -> None:
    tensors["model.layers.1.input_layernorm.weight"].fill_(1.0)


def _halved(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][8:24].mul_(0.5)


def _one_bit(tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.gate_proj.weight"][3, 5] += 0.25


def _still_filled(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.k_proj.weight"].fill_(float("nan"))


LOADS = {
    "transposed": _transposed,
    "norm-left-out": _norm_left_out,
    "halved": _halved,
    "one-element": _one_bit,
    "still-filled": _still_filled,
}


@pytest.fixture(scope="session")
def loads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """Loads of a tiny llama that transformers made: clean, and with tensors spoiled in memory."""
    base = tmp_path_factory.mktemp("loads")
    found = {}
    for name, change in {"clean": None, **LOADS}.items():
        release = write_llama(base / name / "release")
        model = LlamaForCausalLM.from_pretrained(release, dtype="bfloat16")
        if change is not None:
            with torch.no_grad():
                change(dict(model.named_parameters()))
        found[name] = judged.loading(base / name, release, model, dtype="bfloat16")
    release = write_llama(base / "tied" / "release", tied=True)
    tied = LlamaForCausalLM.from_pretrained(release, dtype="bfloat16")
    found["tied"] = judged.loading(base / "tied", release, tied, dtype="bfloat16")
    release = write_llama(base / "one-rank" / "release")
    found["one-rank"] = judged.load_run(_other_rank(base / "one-rank", release), release)
    return found


def _other_rank(folder: Path, release: Path) -> Path:
    """Two ranks that hold the model whole; the second one has another norm."""
    run = RunWriter(folder / "record-1", world_size=2, dtype="bfloat16")
    model = LlamaForCausalLM.from_pretrained(release, dtype="bfloat16")
    for when in ("loaded-1", "loaded-2"):
        run.model(model, when)
    with torch.no_grad():
        model.model.norm.weight[2] += 1.0
    for when in ("loaded-1", "loaded-2"):
        run.model(model, when, rank=1)
    return run.seal()


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """Builds of tiny releases, right and wrong."""
    return judged_builds(tmp_path_factory.mktemp("builds"))


def _dropped(tensors: Tensors) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _renamed(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.rising.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")


def _cast(tensors: Tensors) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].float()


def _turned(tensors: Tensors) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    tensors[name] = tensors[name].T.contiguous()


def _exchanged(tensors: Tensors) -> None:
    names = [f"model.layers.{layer}.mlp.gate_proj.weight" for layer in (0, 1)]
    tensors[names[0]], tensors[names[1]] = tensors[names[1]].clone(), tensors[names[0]].clone()


def _negative_zeros(tensors: Tensors) -> None:
    tensors["model.norm.weight"][:3] = 0.0


EXPORTS = {
    "dropped": _dropped,
    "renamed": _renamed,
    "cast": _cast,
    "turned": _turned,
    "exchanged": _exchanged,
    "zeroed": _negative_zeros,
}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """Exports of a tiny llama: clean, merged, and with tensors and files spoiled on disk; one of MXFP4."""
    base = tmp_path_factory.mktemp("exports")
    found = {}
    for name, change in {"clean": lambda tensors: None, **EXPORTS}.items():
        original = write_llama(base / name / "original")
        edited(original, base / name / "record-1", change)
        found[name] = judged.exported(base / name)
    for name in ("generation_config.json", "chat_template.jinja", "config.json"):
        folder = base / name.partition(".")[0]
        shutil.copytree(base / "clean", folder)
        (folder / "record-1" / name).unlink(missing_ok=True)
        found[folder.name] = judged.exported(folder)
    shutil.copytree(base / "clean", base / "older_template")
    edit_json(base / "older_template/record-1/tokenizer_config.json", chat_template="older")
    found["older_template"] = judged.exported(base / "older_template")
    for name, scale in {"merged": 2.0, "merged-twice": 4.0, "unmerged": 0.0}.items():
        original = write_llama(base / name / "original")
        adapter = _adapter(base / name / "record-2")
        _merged(original, adapter, base / name / "record-1", scale)
        found[name] = judged.exported(base / name, adapter="record-2")
    release, export = write_gpt_oss_pair(base / "made")
    shutil.copytree(release, base / "mxfp4" / "original")
    shutil.copytree(export, base / "mxfp4" / "record-1")
    found["mxfp4"] = judged.exported(base / "mxfp4", framework="transformers")
    return found


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny release whose rows are written down by hand."""
    return tiny_release.write_release(tmp_path_factory.mktemp("tiny") / "release")


def _spoiled(kind: str) -> list[dict[str, Any]]:
    dump = tiny_release.rows()
    ids, labels = dump[3]["input_ids"], dump[3]["labels"]
    on = [at for at, label in enumerate(labels) if label != -100]
    if kind == "stop-masked":
        labels[on[-1]] = -100
    elif kind == "first-masked":
        labels[on[0]] = -100
    elif kind == "user-supervised":
        labels[2] = ids[2]
    elif kind == "bos-twice":
        dump[3] = {"input_ids": [ids[0], *ids], "labels": [-100, *labels]}
    elif kind == "other-token":
        ids[4] += 1
    elif kind == "shifted":
        dump[3]["labels"] = [*labels[1:], -100]
    elif kind == "row-missing":
        del dump[-1]
    elif kind == "row-cut":
        dump[3] = {"input_ids": ids[:-4], "labels": labels[:-4]}
    else:
        dump[3] = _written_otherwise(kind, ids, labels)
    return dump


def _written_otherwise(kind: str, ids: list[int], labels: list[int]) -> dict[str, Any]:
    """A row whose tokens are right: labels of -1, or padding before it that attention covers."""
    if kind == "labels-of-minus-one":
        labels = [-1 if label == -100 else label for label in labels]
    elif kind == "padding-attended":
        pads = [tiny_release.tokenizer().token_to_id("<pad>")] * 5
        ids, labels = pads + ids, [-100] * 5 + labels
        return {"input_ids": ids, "labels": labels, "attention_mask": [1] * len(ids)}
    return {"input_ids": ids, "labels": labels}


ROWS = (
    "stop-masked", "first-masked", "user-supervised", "bos-twice", "other-token", "shifted", "row-missing",
    "row-cut", "labels-of-minus-one", "padding-attended",
)  # fmt: skip


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, Judged]:
    """Rows of the tiny release: clean, and spoiled in one row."""
    base = tmp_path_factory.mktemp("dumps")
    found = {name: judged.rows(base / name, _spoiled(name), tiny) for name in ("clean", *ROWS)}
    found["packed"] = judged.rows(base / "packed", _packed(again=True), tiny, packing="documents")
    found["packed-on"] = judged.rows(base / "packed-on", _packed(again=False), tiny, packing="documents")
    return found


def _packed(*, again: bool) -> list[dict[str, Any]]:
    """Three rows in a sequence; position ids start ``again`` at each of them, or run on."""
    dump = []
    right = tiny_release.rows()
    for first in range(0, len(right), 3):
        inside = right[first : first + 3]
        lengths = [len(each["input_ids"]) for each in inside]
        positions = [at for length in lengths for at in range(length)]
        dump.append(
            {
                "input_ids": [token for each in inside for token in each["input_ids"]],
                "labels": [label for each in inside for label in each["labels"]],
                "position_ids": positions if again else list(range(sum(lengths))),
                "seq_lens": lengths,
                "row_ids": [first + number for number in range(len(inside))],
            }
        )
    return dump
