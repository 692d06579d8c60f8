"""The recorder of trainings in real jobs: it changes nothing, and what it wrote is true."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.templates.played import lines, metadata, play, records, step_file
from tests.templates.test_recorder import fits, header

ONE_RANK = (
    "dropout_and_clipping",
    "loss_outside",
    "clip_imported_early",
    "clip_in_two_parts",
    "autocast_bfloat16",
    "bfloat16_in_place",
    "output_converted",
    "checkpoint_new",
    "checkpoint_reentrant",
    "checkpoint_selective",
    "compiled",
    "compiled_in_place",
    "closure",
    "two_optimizers",
    "container",
    "stale_optimizer",
    "scaler_skips",
    "scaler_skips_of_two",
    "labels_kept_from_the_model",
    "pickled_midway",
    "adapters",
    "transposed_layers",
    "fused",
    "sampled",
    "metrics_only",
    "exchanged_midway",
    "modes_that_turn",
    "trainer_plain",
    "trainer_bfloat16",
    "trainer_smoothed",
)
TWO_RANKS = ("ddp", "ddp_optimizer_first", "fsdp2", "fsdp2_mixed")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("one")
    play(place, ONE_RANK, 1)
    return place


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("two")
    play(place, TWO_RANKS, 2)
    return place


# It changes nothing


@pytest.mark.parametrize("name", ONE_RANK)
def test_a_training_ends_the_same_with_and_without_the_recorder(one: Path, name: str) -> None:
    on, off = ((one / how / f"{name}.0.json").read_text() for how in ("on", "off"))
    assert json.loads(on) == json.loads(off)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_end_the_same_with_and_without_the_recorder(two: Path, name: str, rank: int) -> None:
    on, off = ((two / how / f"{name}.{rank}.json").read_text() for how in ("on", "off"))
    assert json.loads(on) == json.loads(off)


def test_the_digests_tell_trainings_apart(one: Path) -> None:
    different = ("dropout_and_clipping", "loss_outside", "autocast_bfloat16", "bfloat16_in_place", "closure")
    found = {(one / "on" / f"{name}.0.json").read_text() for name in different}
    assert len(found) == len(different), "equal digests would prove nothing"


# It fits the schema


def every_record(place: Path) -> Iterator[Path]:
    found = sorted((place / "on").glob("*/records/rank-*"))
    assert found
    yield from found


def check_schema(place: Path) -> None:
    kinds = {
        "model": "model_line",
        "steps": "step_line",
        "events": "event_line",
        "collectives": "collective_line",
        "state-start": "state_line",
        "state-end": "state_line",
    }
    for folder in every_record(place):
        for kind, definition in kinds.items():
            for line in lines(folder, kind):
                fits(definition, line)
        fits("recorder", json.loads((folder / "recorder.json").read_text()))
        for path in folder.glob("step-*.safetensors"):
            fits("step_tensors", header(path))
            fits("samples", json.loads(header(path)["__metadata__"]["samples"]))
            for placement in json.loads(header(path)["__metadata__"]["placements"]).values():
                fits("placement", placement)
            known = {line["name"] for line in lines(folder, "model")}
            assert known


def test_every_record_of_one_rank_fits_the_schema_and_is_complete(one: Path) -> None:
    check_schema(one)
    for folder in every_record(one):
        assert json.loads((folder / "recorder.json").read_text())["state"] == "complete"
        left = [path.name for path in folder.iterdir() if path.suffix == ".part" or "failed" in path.name]
        assert left == []


def test_every_record_of_two_ranks_fits_the_schema(two: Path) -> None:
    check_schema(two)


# What it wrote is true


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["dropout_and_clipping", "checkpoint_new", "checkpoint_reentrant", "fused"])
def test_log_probabilities_are_those_of_the_recorded_weights(one: Path, name: str) -> None:
    tensors = step_file(records(one, name))
    for micro in range(2):
        hidden = tensors[f"micro.{micro}.witness.head.input"]
        logits = hidden.astype(np.float64) @ tensors["before.head.weight"].T.astype(np.float64)
        labels = tensors[f"micro.{micro}.labels"][:, 1:]
        rows, columns = np.nonzero(labels >= 0)
        expected = log_softmax(logits)[rows, columns, labels[rows, columns]]
        found = tensors[f"micro.{micro}.logprob"]
        np.testing.assert_allclose(found[rows, columns], expected, rtol=1e-5)
        assert np.count_nonzero(found) == len(rows)
        if name != "fused":
            total = np.log(np.exp(logits).sum(-1))
            np.testing.assert_allclose(tensors[f"micro.{micro}.logsumexp"], total, rtol=1e-5)
            np.testing.assert_allclose(
                tensors[f"micro.{micro}.logit_mean"], logits.mean(-1), rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize(
    ("name", "rounding"),
    [
        ("dropout_and_clipping", 1e-6),
        ("loss_outside", 1e-6),
        ("checkpoint_new", 1e-6),
        ("checkpoint_selective", 1e-6),
        ("fused", 1e-6),
        ("autocast_bfloat16", 2**-8),
        ("output_converted", 2**-8),
        ("bfloat16_in_place", 2**-8),
        ("trainer_plain", 1e-6),
        ("trainer_bfloat16", 2**-8),
        ("trainer_smoothed", 1e-6),
        ("labels_kept_from_the_model", 1e-6),
    ],
)
def test_each_supervised_token_has_the_weight_that_the_loss_gave_it(
    one: Path, name: str, rounding: float
) -> None:
    folder = records(one, name)
    line = lines(folder, "steps")[0]
    supervised = [batch["supervised"] for batch in line["micro_batches"]]
    tensors = step_tensors(folder)
    for micro, count in enumerate(supervised):
        weight = tensors[f"micro.{micro}.token_weight"]
        # Trainer divides by the tokens of the whole window, the plain loops by each micro-batch's own.
        total = sum(supervised) if name.startswith("trainer") else count * len(supervised)
        assert np.count_nonzero(weight) == count
        np.testing.assert_allclose(weight[weight != 0], 1 / total, rtol=rounding)
        if name != "fused":
            assert tensors[f"micro.{micro}.token_residual"].max() <= rounding


def step_tensors(folder: Path) -> dict[str, np.ndarray]:
    """The float32 and whole-number tensors of step 1: numpy has no bfloat16."""
    path = folder / "step-000001.safetensors"
    kinds = {name: entry["dtype"] for name, entry in header(path).items() if name != "__metadata__"}
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name, kind in kinds.items() if kind != "BF16"}


@pytest.mark.parametrize("name", ["dropout_and_clipping", "checkpoint_new", "checkpoint_reentrant"])
def test_witnesses_give_the_weight_gradient_of_their_layer(one: Path, name: str) -> None:
    tensors = step_file(records(one, name))
    for module in ("head", "blocks.1.down"):
        total = np.zeros_like(tensors[f"grad.raw.{module}.weight"], np.float64)
        for micro in range(2):
            given = tensors[f"micro.{micro}.witness.{module}.input"].astype(np.float64)
            back = tensors[f"micro.{micro}.witness.{module}.grad_output"].astype(np.float64)
            total += np.einsum("bto,bti->oi", back, given)
        assert np.abs(total).max() > 0
        np.testing.assert_allclose(tensors[f"grad.raw.{module}.weight"], total, rtol=1e-4, atol=1e-7)


def test_a_layer_whose_weight_is_transposed_is_a_witness_too(one: Path) -> None:
    folder = records(one, "transposed_layers")
    modules = ["transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj"]
    assert json.loads(metadata(folder)["transposed"]) == modules
    tensors = step_file(folder)
    for module in modules:
        total = sum(
            np.einsum(
                "bti,bto->io",
                tensors[f"micro.{micro}.witness.{module}.input"].astype(np.float64),
                tensors[f"micro.{micro}.witness.{module}.grad_output"].astype(np.float64),
            )
            for micro in range(2)
        )
        np.testing.assert_allclose(tensors[f"grad.raw.{module}.weight"], total, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", ["dropout_and_clipping", "clip_imported_early", "clip_in_two_parts"])
def test_gradients_are_those_before_and_after_the_clipping(one: Path, name: str) -> None:
    folder = records(one, name)
    line, tensors = lines(folder, "steps")[0], step_file(folder)
    raw = {key[9:]: value for key, value in tensors.items() if key.startswith("grad.raw.")}
    squares = {key: float((value.astype(np.float64) ** 2).sum()) for key, value in raw.items()}
    assert line["gradient_squares_raw"] == pytest.approx(squares, rel=1e-12)
    norm = sum(squares.values()) ** 0.5
    assert line["clip"]["max_norm"] == 0.5
    assert line["clip"]["returned"] == pytest.approx(norm, rel=1e-6)
    assert norm > 0.5
    for key, value in raw.items():
        np.testing.assert_allclose(tensors[f"grad.used.{key}"], value * (0.5 / norm), rtol=1e-4)


def test_before_gradient_and_after_are_one_adamw_step(one: Path) -> None:
    folder = records(one, "dropout_and_clipping")
    line, tensors = lines(folder, "steps")[0], step_file(folder)
    assert [group["weight_decay"] for group in line["groups"]] == [0.1, 0.0]
    for group in line["groups"]:
        for name in group["params"]:
            g = tensors[f"grad.used.{name}"].astype(np.float64)
            before = tensors[f"before.{name}"].astype(np.float64)
            # First step: both moments are bias-corrected to the gradient itself (AdamW, arXiv:1711.05101).
            update = g / (np.abs(g) + group["eps"])
            after = before * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * update
            np.testing.assert_allclose(tensors[f"after.{name}"], after, rtol=2**-22, atol=1e-9)
            np.testing.assert_allclose(tensors[f"state.after.{name}.exp_avg"], 0.1 * g, rtol=1e-5, atol=1e-9)
            assert tensors[f"state.after.{name}.step"] == 1
    second = step_file(folder, 2)
    for name in line["groups"][0]["params"]:
        np.testing.assert_array_equal(second[f"before.{name}"], tensors[f"after.{name}"])
        np.testing.assert_array_equal(
            second[f"state.before.{name}.exp_avg"], tensors[f"state.after.{name}.exp_avg"]
        )


def test_losses_are_the_models_and_the_differentiated_ones(one: Path) -> None:
    for line in lines(records(one, "dropout_and_clipping"), "steps"):
        assert line["step"] in (1, 2, 3)
        assert line["recorded"] == ("full" if line["step"] < 3 else "metrics")
        for batch in line["micro_batches"]:
            assert batch["differentiated"] == pytest.approx(batch["loss"] / 2, rel=1e-6)
            assert (batch["rows"], batch["tokens"], batch["supervised"]) == (2, 20, 16)
    outside = lines(records(one, "loss_outside"), "steps")[0]["micro_batches"][0]
    assert outside["loss"] is None
    assert outside["supervised"] == 16


def test_labels_follow_the_place_where_they_were_seen(one: Path) -> None:
    inside, outside = records(one, "checkpoint_new"), records(one, "loss_outside")
    assert (metadata(inside)["labels"], metadata(outside)["labels"]) == ("aligned", "shifted")
    tensors = step_file(outside)
    ids, labels = tensors["micro.0.input_ids"], tensors["micro.0.labels"]
    on = labels >= 0
    assert on.sum() == 16
    np.testing.assert_array_equal(labels[:, :-1][on[:, :-1]], ids[:, 1:][on[:, :-1]])


def test_modes_tell_what_did_not_act(one: Path) -> None:
    steps = [line["micro_batches"] for line in lines(records(one, "modes_that_turn"), "steps")]
    first, second, third = (batches[-1]["modes"] for batches in steps)
    assert (first["training"], first["turned"]) == (True, ["frozen"])
    assert first["inactive"] == [
        {"module": "frozen.1", "class": "Dropout", "setting": "p", "value": 0.3, "trained": False}
    ]
    assert (second["training"], second["turned"]) == (True, ["norm", "two"])
    assert [(each["module"], each["setting"], each["value"]) for each in second["inactive"]] == [
        ("norm", "track_running_stats", 1.0),
        ("two", "dropout", 0.1),
    ]
    assert (third["training"], third["turned"]) == (False, [])
    found = [(each["module"], each["trained"]) for each in third["inactive"]]
    assert found == [("", True), ("norm", True), ("two", True), ("rectifier", True), ("frozen.1", False)]
    assert [batch["modes"] is None for batch in steps[1]] == [True, False, False]


def test_the_model_is_described_at_start_and_end(one: Path) -> None:
    found = lines(records(one, "loss_outside"), "model")
    start = {line["name"]: line for line in found if line["when"] == "start"}
    end = {line["name"]: line for line in found if line["when"] == "end"}
    assert start.keys() == end.keys()
    assert start["head.weight"]["same_as"] == "embedding.weight"
    assert start["embedding.weight"]["same_as"] is None
    assert start["blocks.0.norm.weight"]["module"] == "LayerNorm"
    moved = [name for name in start if start[name]["sha256"] != end[name]["sha256"]]
    assert len(moved) == len(start)


def test_generators_are_digested_without_a_draw(one: Path) -> None:
    folder = records(one, "dropout_and_clipping")
    start, end = (
        {line["name"]: line["sha256"] for line in lines(folder, f"state-{when}") if line["kind"] == "rng"}
        for when in ("start", "end")
    )
    assert start["torch.cpu"] != end["torch.cpu"]
    assert start["python"] == end["python"]
    optimizer = [line for line in lines(folder, "state-end") if line["kind"] == "optimizer"]
    assert len(optimizer) == 3 * 16


def test_compiled_models_are_recorded_at_the_optimizer(one: Path) -> None:
    for name in ("compiled", "compiled_in_place"):
        folder = records(one, name)
        assert [event["what"] for event in lines(folder, "events")] == ["logits"]
        line = lines(folder, "steps")[0]
        assert line["micro_batches"][0]["loss"] is not None
        tensors = step_file(folder)
        assert not any("witness" in key or "token" in key for key in tensors)
        assert "grad.raw.head.weight" in tensors


def test_names_follow_what_became_of_the_model_between_metrics_steps(one: Path) -> None:
    first, second = lines(records(one, "exchanged_midway"), "steps")
    before, after = (
        [name for group in line["groups"] for name in group["params"]] for line in (first, second)
    )
    assert "blocks.0.up.weight" in before
    assert set(before) - set(after) == {"blocks.0.up.weight"}
    assert set(after) - set(before) == {"unowned.0.1", "further.weight", "further.bias"}


def test_several_optimizers_share_a_step_and_its_file(one: Path) -> None:
    for name, classes in (("two_optimizers", {"Muon", "AdamW"}), ("container", {"AdamW"})):
        folder = records(one, name)
        found = lines(folder, "steps")
        assert [(line["step"], line["optimizer"]["number"]) for line in found] == [
            (step, number) for step in (1, 2, 3) for number in (0, 1)
        ]
        assert {line["optimizer"]["class"] for line in found} == classes
        names = [name for line in found[:2] for group in line["groups"] for name in group["params"]]
        assert len(names) == len(set(names))
        tensors = step_file(folder)
        assert {f"after.{name}" for name in names} <= tensors.keys()
        assert all(line["gradient_squares_used"] for line in found[:4])


def test_an_optimizer_that_holds_replaced_parameters_is_shown(one: Path) -> None:
    folder = records(one, "stale_optimizer")
    held = [name for group in lines(folder, "steps")[0]["groups"] for name in group["params"]]
    assert [name for name in held if name.startswith("unowned.")] == ["unowned.0.1", "unowned.0.3"]
    tensors = step_file(folder)
    np.testing.assert_array_equal(tensors["before.unowned.0.1"], tensors["after.unowned.0.1"])
    trained = {line["name"] for line in lines(folder, "model") if line["requires_grad"]}
    assert {"blocks.0.up.weight", "blocks.1.up.weight"} == trained - set(held)


def test_a_closure_is_recorded_with_the_gradients_it_makes(one: Path) -> None:
    folder = records(one, "closure")
    assert [len(line["micro_batches"]) for line in lines(folder, "steps")] == [1, 1, 1]
    tensors = step_file(folder)
    for key in ("head.weight", "norm.bias"):
        expected = tensors[f"before.{key}"] - np.float32(0.1) * tensors[f"grad.used.{key}"]
        np.testing.assert_allclose(tensors[f"after.{key}"], expected, atol=1e-7)


def test_a_step_that_a_gradient_scaler_leaves_out_is_an_event(one: Path) -> None:
    folder = records(one, "scaler_skips")
    assert [(event["event"], event["step"]) for event in lines(folder, "events")] == [("skipped", 1)]
    found = lines(folder, "steps")
    assert [line["step"] for line in found] == [2, 3, 4]
    assert found[0]["loss_scale"] == 64
    batch = found[0]["micro_batches"][0]
    assert batch["differentiated"] == pytest.approx(64 * batch["loss"], rel=1e-6)


def test_steps_of_two_optimizers_that_a_gradient_scaler_leaves_out(one: Path) -> None:
    folder = records(one, "scaler_skips_of_two")
    assert [(event["event"], event["step"]) for event in lines(folder, "events")] == [
        ("skipped", 1), ("skipped", 2), ("skipped", 3),
    ]  # fmt: skip
    found = lines(folder, "steps")
    classes = [(line["step"], line["optimizer"]["class"]) for line in found]
    assert classes == [(2, "AdamW"), (3, "Muon"), (4, "Muon"), (4, "AdamW"), (5, "Muon"), (5, "AdamW")]
    assert [len(line["micro_batches"]) for line in found] == [1] * 6
    assert [line["loss_scale"] for line in found] == [32, 16, 8, 8, 8, 8]
    two = step_file(folder, 2)
    assert "after.head.weight" in two
    assert "after.blocks.0.up.weight" not in two


def test_the_factor_of_an_adapter_is_measured(one: Path) -> None:
    for line in lines(records(one, "adapters"), "steps")[:2]:
        for batch in line["micro_batches"]:
            assert batch["adapters"].keys() == {"blocks.1.down"}
            assert batch["adapters"]["blocks.1.down"]["scaling"] == pytest.approx(1.75, rel=1e-6)
            assert batch["adapters"]["blocks.1.down"]["residual"] < 1e-6


def test_large_tensors_are_sampled_with_their_stride(one: Path) -> None:
    whole, sampled = (step_file(records(one, name)) for name in ("checkpoint_new", "sampled"))
    about = json.loads(metadata(records(one, "sampled"))["samples"])
    assert about["before.head.weight"] == {"stride": 10, "shape": [61, 16]}
    for name, sample in about.items():
        np.testing.assert_array_equal(sampled[name], whole[name].reshape(-1)[:: sample["stride"]])
    assert sampled["before.norm.weight"].shape == (16,)


def test_metrics_only_writes_no_tensors(one: Path) -> None:
    folder = records(one, "metrics_only")
    assert list(folder.glob("step-*")) == []
    assert all(line["gradient_squares_raw"] == {} for line in lines(folder, "steps"))


# Two ranks


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_raw_gradients_are_the_mean_over_ranks(two: Path, name: str) -> None:
    tensors = [step_file(records(two, name, rank)) for rank in (0, 1)]
    total = np.zeros((61, 16))
    for rank in tensors:
        for micro in range(2):
            back, given = (
                rank[f"micro.{micro}.witness.head.{part}"].astype(np.float64)
                for part in ("grad_output", "input")
            )
            total += np.einsum("bto,bti->oi", back, given) / 2
    found = [rank["grad.raw.head.weight"] for rank in tensors]
    whole = found[0] if name == "ddp" else np.concatenate(found)
    np.testing.assert_allclose(whole, total, rtol=1e-4, atol=1e-7)
    if name == "ddp":
        np.testing.assert_array_equal(found[0], found[1])


def test_shards_are_written_without_padding_and_cover_the_tensor(two: Path) -> None:
    places = [json.loads(metadata(records(two, "fsdp2", rank))["placements"]) for rank in (0, 1)]
    assert places[0].keys() == places[1].keys()
    for name, shape in (("embedding.weight", [61, 16]), ("blocks.1.down.bias", [16])):
        first, second = (place[name] for place in places)
        assert first["kinds"] == second["kinds"] == ["shard(0)"]
        assert first["offset"][0] == 0
        assert second["offset"][0] == first["local_shape"][0]
        assert first["local_shape"][0] + second["local_shape"][0] == shape[0]
        tensors = [step_file(records(two, "fsdp2", rank)) for rank in (0, 1)]
        assert [list(rank[f"after.{name}"].shape) for rank in tensors] == [
            first["local_shape"],
            second["local_shape"],
        ]
    line = lines(records(two, "fsdp2"), "model")[0]
    assert (line["shape"], line["elements"]) == ([61, 16], 31 * 16)


def test_the_norm_over_shards_is_the_returned_one(two: Path) -> None:
    ranks = [lines(records(two, "fsdp2", rank), "steps")[0] for rank in (0, 1)]
    norm = sum(sum(line["gradient_squares_raw"].values()) for line in ranks) ** 0.5
    assert ranks[0]["clip"]["returned"] == pytest.approx(norm, rel=1e-6)
    assert ranks[0]["clip"]["returned_placement"]


def test_collectives_of_fsdp_are_listed_on_full_steps(two: Path) -> None:
    folder = records(two, "fsdp2")
    found = lines(folder, "collectives")
    counts = json.loads((folder / "recorder.json").read_text())["collectives"]
    assert found
    assert all(line["group_size"] == 2 for line in found)
    assert len(found) < sum(counts.values()), "metrics steps are counted only"
