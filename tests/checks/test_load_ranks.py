"""The load check over ranks: shards, replicas, ranks that died, records that do not hold."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from checks.check import evaluate
from checks.errors import BadInput
from checks.load import CHECK, LoadInputs
from checks.verdict import Caught, Outcome
from tests.checks.export_pairs import write_llama
from tests.checks.loaded_runs import RunWriter, Shard, job, load_check, problem, recorded
from tests.checks.verdict_parts import codes, part

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "release")


def loaded(release: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(release, dtype="bfloat16")


def shards(model: torch.nn.Module, rank: int, world: int, axis: int = 0) -> dict[str, Shard]:
    """torch.chunk's parts along an axis that a parameter has, else along the first."""
    found = {}
    for name, value in model.named_parameters():
        along = axis if value.ndim > axis else 0
        length = value.shape[along]
        size = -(-length // world)
        start = min(rank * size, length)
        offset = [0] * value.ndim
        local = list(value.shape)
        offset[along], local[along] = start, min(size, length - start)
        found[name] = (tuple(offset), tuple(local))
    return found


def sharded(folder: Path, models: list[torch.nn.Module], axis: int = 0, *, whole: bool = True) -> Path:
    run = RunWriter(folder, world_size=len(models), layout="fsdp2", dtype="bfloat16")
    for rank, model in enumerate(models):
        for when in ("loaded-1", "loaded-2"):
            boxes = shards(model, rank, len(models), axis)
            run.model(model, when, rank=rank, shards=boxes, whole=whole)
    return run.seal()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("world", "axis"), [(2, 0), (3, 0), (3, 1), (7, 1)])
def test_shards_of_any_axis_pass(release: Path, tmp_path: Path, world: int, axis: int, whole: bool) -> None:
    run = sharded(tmp_path / "run", [loaded(release)] * world, axis, whole=whole)
    verdict = load_check(run, release)
    assert verdict.outcome is Outcome.PASS
    assert str(part(verdict, "values").coverage) == "21 of 21 tensors"
    assert Caught.MISSED not in {injection.result for injection in verdict.injected}


def test_a_transposed_matrix_is_named_from_its_shards(release: Path, tmp_path: Path) -> None:
    model = loaded(release)
    with torch.no_grad():
        model.get_parameter(Q).copy_(model.get_parameter(Q).T.clone())
    verdict = load_check(sharded(tmp_path / "run", [model] * 3), release)
    assert codes(verdict) == {("values", "transposed")}
    assert verdict.problem_count == 1


@pytest.mark.parametrize("whole", [True, False])
def test_one_wrong_shard_is_placed_at_its_rank(release: Path, tmp_path: Path, whole: bool) -> None:
    wrong = loaded(release)
    with torch.no_grad():
        wrong.get_parameter(Q).mul_(2)
    run = sharded(tmp_path / "run", [loaded(release), wrong], whole=whole)
    found = problem(load_check(run, release), "wrong-scale")
    assert (found.place.tensor, found.place.rank) == (Q, 1)
    assert "2 times" in found.message


def test_shards_that_overlap_or_leave_a_hole(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", world_size=2, layout="fsdp2", dtype="bfloat16")
    model = loaded(release)
    for rank in range(2):
        for when in ("loaded-1", "loaded-2"):
            boxes = shards(model, rank, 2) | {Q: ((0, 0), (16, 32)) if rank == 0 else ((20, 0), (12, 32))}
            run.model(model, when, rank=rank, shards=boxes)
    found = problem(load_check(run.seal(), release), "shards-incomplete")
    assert (found.expected, found.found) == ("1,024", "896")


UNREADABLE: list[dict[str, object]] = [
    {"placement": {"local_shape": [16, 32], "offset": None, "kinds": ["strided_shard(0,2)"]}},
    {"dtype": "float4_e2m1fn_x2"},
    {"sha256": None},
]


@pytest.mark.parametrize("fields", UNREADABLE)
def test_a_record_that_cannot_be_placed_or_read_decides_nothing(
    release: Path, tmp_path: Path, fields: dict[str, object]
) -> None:
    folder = sharded(tmp_path / "run", [loaded(release)] * 2)
    for rank in range(2):
        path = folder / f"records/rank-{rank:05d}/model.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["name"] == Q:
                line |= fields
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    resealed = RunWriter.__new__(RunWriter)
    resealed.folder = folder
    verdict = load_check(resealed.seal(), release)
    assert part(verdict, "values").outcome is Outcome.INCONCLUSIVE
    assert ("values", "values-undecided") in codes(verdict)


def replicated(folder: Path, models: list[torch.nn.Module]) -> RunWriter:
    run = RunWriter(folder, world_size=len(models), layout="ddp", dtype="bfloat16")
    for rank, model in enumerate(models):
        for when in ("loaded-1", "loaded-2"):
            run.model(model, when, rank=rank)
    return run


def test_replicas_that_differ(release: Path, tmp_path: Path) -> None:
    wrong = loaded(release)
    with torch.no_grad():
        wrong.model.norm.weight[3] += 1
    run = replicated(tmp_path / "run", [loaded(release), loaded(release), wrong])
    verdict = load_check(run.seal(), release)
    assert codes(verdict) == {("values", "values-differ"), ("replicas", "replicas-differ")}
    assert problem(verdict, "replicas-differ").place.rank == 2
    assert problem(verdict, "values-differ").place.rank == 2


def test_a_tensor_that_one_replica_lacks(release: Path, tmp_path: Path) -> None:
    partial = loaded(release)
    del partial.model.layers[1].mlp.up_proj
    run = replicated(tmp_path / "run", [loaded(release), partial])
    assert codes(load_check(run.seal(), release)) == {("replicas", "tensor-absent")}


def test_a_rank_that_died_is_a_fail(release: Path, tmp_path: Path) -> None:
    run = replicated(tmp_path / "run", [loaded(release)] * 2)
    run.exit(1, code=None, signal=9)
    run.write("logs/rank-00001.err", "loading\nout of memory\n")
    run.append("records/rank-00001/model.jsonl", [{"cut": "short"}])
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.FAIL
    found = problem(verdict, "rank-died")
    assert "signal 9" in found.message
    assert "out of memory" in found.message
    assert part(verdict, "values").outcome is Outcome.PASS


def test_every_rank_that_died_leaves_the_rest_unevaluated(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    run.exit(0, code=1)
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.FAIL
    assert {each.outcome for each in verdict.parts[1:]} == {Outcome.NOT_EVALUATED}


def test_a_rank_without_records_is_inconclusive(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", world_size=2, dtype="bfloat16")
    for when in ("loaded-1", "loaded-2"):
        run.model(loaded(release), when)
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert codes(verdict) == {("ranks", "nothing-recorded")}


@pytest.mark.parametrize("how", ["mark", "recording", "absent"])
def test_a_recorder_that_failed_is_inconclusive(release: Path, tmp_path: Path, how: str) -> None:
    """Even where its half of a record would look like a fail."""
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    partial = loaded(release)
    del partial.model.layers[1].mlp.up_proj
    run.model(partial, "loaded-1")
    state = run.folder / "records/rank-00000/recorder.json"
    if how == "mark":
        failed = {"format": 1, "what": "writing", "why": "OSError: disk full"}
        run.write("records/rank-00000/recorder-failed.json", json.dumps(failed).ljust(4096))
    elif how == "recording":
        state.write_text(json.dumps({"state": "recording"}))
    else:
        state.unlink()
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert codes(verdict) == {("ranks", "recorder-failed")}
    assert how != "mark" or "disk full" in verdict.reason


def test_an_unsealed_run_is_not_evaluated(release: Path, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", loaded(release), dtype="bfloat16")
    (run / "manifest.json").unlink()
    assert load_check(run, release).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("name", ["model.jsonl", "loaded-2-000.safetensors"])
def test_a_record_changed_after_sealing_is_inconclusive(release: Path, tmp_path: Path, name: str) -> None:
    run = recorded(tmp_path / "run", loaded(release), dtype="bfloat16")
    path = run / "records/rank-00000" / name
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    verdict = load_check(run, release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "changed after sealing" in verdict.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("shape", [-1]),
        ("dtype", 3),
        ("surprise", 1),
        ("placement", {"local_shape": [99, 99], "offset": [0, 0]}),
        ("sha256", 7),
    ],
)
def test_a_line_that_does_not_fit_the_schema_is_inconclusive(
    release: Path, tmp_path: Path, field: str, value: object
) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    run.model(loaded(release))
    path = run.folder / "records/rank-00000/model.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {field: value})
    path.write_text("\n".join(lines) + "\n")
    assert load_check(run.seal(), release).outcome is Outcome.INCONCLUSIVE


def test_a_run_that_recorded_no_load_is_not_evaluated(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    run.model(loaded(release), "start")
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert codes(verdict) == {("ranks", "nothing-recorded")}


def test_a_run_of_another_procedure_is_a_usage_error(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    run.write("job.json", json.dumps(job(1, {}) | {"procedure": "rows"}))
    with pytest.raises(BadInput, match="'rows', not load"):
        evaluate(CHECK, LoadInputs(run=run.seal(), model=release))


def test_what_is_no_run_is_a_usage_error(release: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput):
            evaluate(CHECK, LoadInputs(run=folder, model=release))
