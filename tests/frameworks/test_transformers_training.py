"""Training and loading with the transformers pack: the recipe reaches the framework, and its records say so.

What steps and loads must be is judged by the checks and tested there. Here each setting is followed into the
framework: the reference is what torch's own objects report inside the job, and the same global batch
trained in other ways.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from checks.references.packs import load_pack
from plumbline_mcp.scan.example_spec import ReleaseSpec
from tests.frameworks.pack_jobs import Jobs, lines, logged, pack_environment

pytestmark = pytest.mark.environment
LORA = {"r": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]}
MATRICES = ["*norm*", "*embed_tokens*", "lm_head*"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("training")
    return Jobs("transformers", folder, pack_environment("transformers"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    spec = ReleaseSpec(family="llama", quantized=False)
    return Jobs("transformers", tmp_path_factory.mktemp("llama"), pack_environment("transformers"), spec)


def groups(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [group for group in step["groups"] if group["params"]]


def parameters(jobs: Jobs, **settings: Any) -> dict[str, dict[str, Any]]:
    """The parameters of the model that a train_step job trained, as they were when it started."""
    found = lines(jobs.run("train_step", **settings), "model")
    return {line["name"]: line for line in found if (line["when"], line["kind"]) == ("start", "parameter")}


def test_the_default_step_is_recorded_in_full(jobs: Jobs) -> None:
    folder = jobs.run("train_step", batch_size=2)
    steps = lines(folder, "steps")
    assert [step["recorded"] for step in steps] == ["full", "full"]
    assert [group["lr"] for step in steps for group in groups(step)] == [5e-5, 5e-5, 2.5e-5, 2.5e-5]
    losses = [step["micro_batches"][0]["differentiated"] for step in steps]
    assert logged(folder, "loss") == pytest.approx(losses, rel=1e-6)
    tensors = load_file(folder.path / "records/rank-00000/step-000001.safetensors")
    assert {"micro.0.input_ids", "micro.0.labels", "micro.0.logprob"} <= set(tensors)
    supervised = (tensors["micro.0.labels"][:, 1:] != -100).sum()
    assert steps[0]["micro_batches"][0]["supervised"] == supervised > 0


def test_one_global_batch_gives_one_loss_however_it_is_shared(jobs: Jobs) -> None:
    """Two ranks of 2 rows, sharded or not, see the rows that one rank sees in two micro-batches."""
    ways = [{"accumulation": 2}, {"ranks": 2}, {"ranks": 2, "layout": "fsdp2"}]
    folders = [jobs.run("train_step", batch_size=2, **way) for way in ways]
    first, *others = [logged(folder, "loss") for folder in folders]
    norms = [logged(folder, "grad_norm") for folder in folders]
    for other in others:
        assert other == pytest.approx(first, rel=1e-5)
    for norm in norms[1:]:
        assert norm == pytest.approx(norms[0], rel=1e-4)
    alone = logged(jobs.run("train_step", batch_size=2), "loss")
    assert alone[0] != pytest.approx(first[0], rel=1e-3)
    assert [len(folder.exits()) for folder in folders] == [1, 2, 2]


def test_fsdp2_shards_every_parameter_over_both_ranks(jobs: Jobs) -> None:
    folder = jobs.run("train_step", batch_size=2, ranks=2, layout="fsdp2")
    for rank in (0, 1):
        started = [line for line in lines(folder, "model", rank) if line["when"] == "start"]
        assert started
        for line in (line for line in started if line["kind"] == "parameter"):
            assert line["placement"]["mesh"] == [2]
            assert line["placement"]["kinds"] == ["shard(0)"]
            assert line["placement"]["local_shape"][0] == line["shape"][0] // 2


@pytest.mark.parametrize(
    ("settings", "made", "wanted"),
    [
        ({"weight_decay": 0.1, "beta2": 0.95}, "AdamW", {"betas": [0.9, 0.95], "eps": 1e-8}),
        ({"optimizer": "adam", "epsilon": 1e-6}, "Adam", {"betas": [0.9, 0.999], "eps": 1e-6}),
        ({"optimizer": "sgd", "momentum": 0.5}, "SGD", {"momentum": 0.5}),
        ({"optimizer": "adafactor"}, "Adafactor", {"scale_parameter": False, "relative_step": False}),
        ({"optimizer": "muon", "momentum": 0.8, "frozen": MATRICES}, "Muon", {"momentum": 0.8}),
    ],
)
def test_the_recipes_optimizer_is_the_one_that_steps(
    llama: Jobs, settings: dict[str, Any], made: str, wanted: dict[str, Any]
) -> None:
    folder = llama.run("train_step", batch_size=2, steps=1, learning_rate=1e-3, **settings)
    (step,) = lines(folder, "steps")
    assert step["optimizer"]["class"].rpartition(".")[2] == made
    for group in groups(step):
        assert group["lr"] == 1e-3
        assert {name: group[name] for name in wanted} == wanted
    assert {group["weight_decay"] for group in groups(step)} <= {0.0, settings.get("weight_decay", 0.0)}


def test_what_the_framework_does_not_decay_is_what_the_pack_declares(jobs: Jobs) -> None:
    (decay,) = load_pack("transformers").decays()
    (step,) = lines(jobs.run("train_step", batch_size=2, steps=1, weight_decay=0.1), "steps")
    decayed = {name for group in groups(step) if group["weight_decay"] for name in group["params"]}
    spared = {name for group in groups(step) if not group["weight_decay"] for name in group["params"]}
    declared = {
        name for name in decayed | spared if any(re.search(each, name.lower()) for each in decay.excluded)
    }
    assert spared == declared
    assert decayed
    assert "model.norm.weight" in spared


def test_muon_refuses_what_is_no_matrix(jobs: Jobs) -> None:
    folder = jobs.ended("train_step", batch_size=2, optimizer="muon")
    assert not folder.exits()[0].clean
    assert "Muon only supports 2D parameters" in jobs.said(folder)


@pytest.mark.parametrize(
    ("dtype", "recorded"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("default", "bfloat16")]
)
def test_the_recipes_dtype_is_that_of_the_parameters(jobs: Jobs, dtype: str, recorded: str) -> None:
    found = parameters(jobs, batch_size=2, steps=1, dtype=dtype)
    assert {line["dtype"] for line in found.values()} == {recorded}


def test_autocast_computes_in_bfloat16_on_float32_parameters(jobs: Jobs) -> None:
    found = parameters(jobs, batch_size=2, steps=1, autocast="bfloat16")
    assert {line["dtype"] for line in found.values()} == {"float32"}
    (step,) = lines(jobs.run("train_step", batch_size=2, steps=1, autocast="bfloat16"), "steps")
    assert step["micro_batches"][0]["logits_dtype"] == "bfloat16"


def test_frozen_parameters_are_held_by_no_optimizer(jobs: Jobs) -> None:
    frozen = ["*router*", "model.embed_tokens.*"]
    found = parameters(jobs, batch_size=2, steps=1, frozen=frozen)
    still = {name for name, line in found.items() if not line["requires_grad"]}
    assert still == {name for name in found if "router" in name or name.startswith("model.embed_tokens.")}
    (step,) = lines(jobs.run("train_step", batch_size=2, steps=1, frozen=frozen), "steps")
    held = {name for group in step["groups"] for name in group["params"]}
    assert held == set(found) - still


def test_an_adapter_alone_is_trained(jobs: Jobs) -> None:
    found = parameters(jobs, batch_size=2, steps=1, lora=LORA)
    trained = [name for name, line in found.items() if line["requires_grad"]]
    assert trained
    assert all(re.search(r"[qv]_proj\.lora_[AB]", name) for name in trained)


def test_dropout_changes_the_loss_and_a_schedule_the_rate(jobs: Jobs) -> None:
    plain = logged(jobs.run("train_step", batch_size=2, steps=1), "loss")
    dropped = logged(jobs.run("train_step", batch_size=2, steps=1, dropout=0.5), "loss")
    assert dropped != pytest.approx(plain, rel=1e-4)
    folder = jobs.run(
        "first_run", batch_size=1, steps=3, schedule="constant_with_warmup", warmup_steps=2, max_length=64
    )
    assert [groups(step)[0]["lr"] for step in lines(folder, "steps")] == [0.0, 2.5e-5, 5e-5]
    assert {step["recorded"] for step in lines(folder, "steps")} == {"metrics"}


def test_labels_are_known_with_label_smoothing_though_the_model_is_not_given_them(jobs: Jobs) -> None:
    folder = jobs.run("train_step", batch_size=2, steps=1, label_smoothing=0.1)
    (step,) = lines(folder, "steps")
    plain = lines(jobs.run("train_step", batch_size=2, steps=1), "steps")[0]
    assert step["micro_batches"][0]["supervised"] == plain["micro_batches"][0]["supervised"] > 0
    assert step["micro_batches"][0]["differentiated"] != pytest.approx(
        plain["micro_batches"][0]["differentiated"], rel=1e-4
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"frozen": ["nothing.*"]}, "names no parameter"),
        ({"layout": "ddp"}, "layout ddp does not fit 1 ranks"),
        ({"ranks": 2, "layout": "single"}, "layout single does not fit 2 ranks"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_before_training(
    jobs: Jobs, settings: dict[str, Any], why: str
) -> None:
    folder = jobs.ended("train_step", batch_size=2, **settings)
    assert 3 in {ended.code for ended in folder.exits()}
    assert re.search(f"^refused: .*{re.escape(why)}", jobs.said(folder), re.MULTILINE)
    assert not lines(folder, "steps")


def test_the_dry_run_parses_the_recipe_and_builds_without_memory(jobs: Jobs) -> None:
    folder = jobs.run("dry_run", accumulation=3, schedule="cosine", learning_rate=1e-4, frozen=["*router*"])
    arguments = json.loads((folder.output / "arguments.json").read_text())
    assert (arguments["gradient_accumulation_steps"], arguments["lr_scheduler_type"]) == (3, "cosine")
    assert arguments["learning_rate"] == 1e-4
    built = lines(folder, "model")
    assert {line["when"] for line in built} == {"meta"}
    assert {line["sha256"] for line in built} == {None}
    started = parameters(jobs, batch_size=2)
    made = {line["name"]: line["shape"] for line in built if line["kind"] == "parameter"}
    assert made == {name: line["shape"] for name, line in started.items()}
    assert {line["name"] for line in built if not line["requires_grad"] and line["kind"] == "parameter"} == {
        name for name in made if "router" in name
    }


def test_both_loads_hold_the_same_model(jobs: Jobs) -> None:
    found = lines(jobs.run("load", dtype="bfloat16"), "model")
    first, second = (
        {line["name"]: line["sha256"] for line in found if line["when"] == when}
        for when in ("loaded-1", "loaded-2")
    )
    assert first == second
    assert len(first) > 70


PLANT = """
from transformers import core_model_loading, modeling_utils
original = modeling_utils.convert_and_load_state_dict_in_model
def dropping(model, state_dict, *arguments, **named):
    state_dict.pop("model.norm.weight", None)
    return original(model, state_dict, *arguments, **named)
modeling_utils.convert_and_load_state_dict_in_model = dropping
modeling_utils.PreTrainedModel._initialize_missing_keys = lambda self, *rest: None
"""


def test_what_a_loader_forgets_keeps_the_fill(jobs: Jobs, tmp_path: Path) -> None:
    plant = tmp_path / "forget.py"
    plant.write_text(PLANT)
    folder = jobs.ended("load", plants=(plant,))
    assert folder.exits()[0].clean, jobs.said(folder)
    (first, second) = [line for line in lines(folder, "fills") if line["point"] == "materialised"]
    assert first["names"] == second["names"] == ["model.norm.weight"]
    loaded = {line["name"]: line for line in lines(folder, "model") if line["when"] == "loaded-1"}
    left = ["model.norm.weight", "model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"]
    assert sorted(name for name, line in loaded.items() if line["nonfinite"]) == left


@pytest.mark.parametrize(
    "pins",
    [
        ("transformers==4.46.3", "accelerate==1.1.1", "jinja2==3.1.6", "peft==0.13.2"),
        ("transformers==4.57.6", "accelerate==1.10.1", "jinja2==3.1.6", "peft==0.17.1"),
        ("transformers==5.8.1", "accelerate==1.15.0", "jinja2==3.1.6"),
    ],
    ids=lambda pins: pins[0],
)
def test_the_bindings_run_on_older_releases(tmp_path: Path, pins: tuple[str, ...]) -> None:
    spec = ReleaseSpec(family="llama", quantized=False)
    jobs = Jobs("transformers", tmp_path, pack_environment("transformers", pins), spec)
    assert len(lines(jobs.run("train_step", batch_size=2, accumulation=2), "steps")) == 2
    assert lines(jobs.run("load"), "model")
    assert lines(jobs.run("dry_run"), "model")
    refused = jobs.ended("train_step", ranks=2, layout="fsdp2")
    assert 3 in {ended.code for ended in refused.exits()}
    assert f"refused: transformers {pins[0].rpartition('=')[2]} shards no model on a CPU" in jobs.said(
        refused
    )
