"""The load check on models that transformers loaded: clean ones pass, faults are named at their place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from checks.verdict import Caught, Outcome, Verdict
from tests.checks.export_pairs import edited, write_llama
from tests.checks.loaded_runs import RunWriter, load_check, problem, recorded
from tests.checks.verdict_parts import codes, part

Q = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "release")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tied") / "release", tied=True)


def loaded(folder: Path, dtype: str = "bfloat16") -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype)


def changed(release: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], **how: Any) -> Verdict:
    """The verdict on a model with tensors changed in place after the load."""
    model = loaded(release, how.setdefault("dtype", "bfloat16"))
    with torch.no_grad():
        change(dict(model.named_parameters()) | dict(model.named_buffers()))
    return load_check(recorded(tmp_path / "run", model, **how), release)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_right_load_passes(release: Path, tmp_path: Path, dtype: str, whole: bool) -> None:
    run = recorded(tmp_path / "run", loaded(release, dtype), whole=whole, dtype=dtype)
    verdict = load_check(run, release)
    assert verdict.outcome is Outcome.PASS
    assert str(part(verdict, "values").coverage) == "21 of 21 tensors"
    assert str(part(verdict, "buffers").coverage) == "2 of 2 buffers"
    assert Caught.MISSED not in {injection.result for injection in verdict.injected}


@pytest.mark.parametrize("setting", [{}, {"dtype": "auto"}, {"dtype": "default"}])
def test_without_a_recipe_dtype_the_release_decides(release: Path, tmp_path: Path, setting: Any) -> None:
    assert load_check(recorded(tmp_path / "run", loaded(release), **setting), release).outcome is Outcome.PASS
    wide = load_check(recorded(tmp_path / "wide", loaded(release, "float32"), **setting), release)
    leaves_it = setting.get("dtype") == "default"  # to the framework: float32 holds every bfloat16
    assert wide.outcome is (Outcome.PASS if leaves_it else Outcome.FAIL)


def test_a_recipe_dtype_that_was_not_followed(release: Path, tmp_path: Path) -> None:
    verdict = load_check(recorded(tmp_path / "run", loaded(release), dtype="float32"), release)
    assert codes(verdict) == {("dtypes", "dtype-differs")}
    assert part(verdict, "values").outcome is Outcome.PASS


def test_mixed_dtypes_are_found_at_their_place(release: Path, tmp_path: Path) -> None:
    model = loaded(release, "float32")
    model.model.layers[1].mlp.down_proj.to(torch.bfloat16)
    verdict = load_check(recorded(tmp_path / "run", model, dtype="float32"), release)
    found = problem(verdict, "dtype-differs")
    assert codes(verdict) == {("dtypes", "dtype-differs")}
    assert (found.place.tensor, found.expected, found.found) == (DOWN, "F32", "BF16")


CHANGES: list[tuple[str, str, Callable[[dict[str, torch.Tensor]], object], bool]] = [
    ("transposed", "last two axes", lambda t: t[Q].copy_(t[Q].T.clone()), True),
    ("permuted", "halves swapped", lambda t: t[Q].copy_(t[Q].roll(16, 0)), False),
    ("permuted", "neighbours swapped", lambda t: t[Q].copy_(t[Q][[i ^ 1 for i in range(32)]]), False),
    ("wrong-scale", "2 times", lambda t: t[Q].mul_(2), True),
    ("wrong-scale", "rows 8 to 11", lambda t: t[Q][8:12].mul_(0.5), False),
    ("re-initialised", "every value is 1", lambda t: t[NORM].fill_(1), True),
    ("re-initialised", "unrelated", lambda t: t[DOWN].normal_(0, 0.02), False),
    ("zeroed", "zero", lambda t: t[DOWN].zero_(), True),
    ("truncated", "copied in part", lambda t: t[DOWN][20:].zero_(), False),
    ("values-differ", "2 of 1024", lambda t: t[Q][3, 5:7].add_(0.5), False),
    ("permuted", "layers.1.mlp.down_proj", lambda t: t[DOWN.replace("1", "0")].copy_(t[DOWN]), True),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words", "change", "from_digest"), CHANGES)
@pytest.mark.parametrize("whole", [True, False])
def test_a_difference_is_named(
    release: Path,
    tmp_path: Path,
    code: str,
    words: str,
    change: Callable[[dict[str, torch.Tensor]], object],
    from_digest: bool,
    whole: bool,
) -> None:
    verdict = changed(release, tmp_path, change, whole=whole)
    assert [part.name for part in verdict.parts if part.outcome is Outcome.FAIL] == ["values"]
    found = next(each for name, each in verdict.problems() if name == "values")
    if whole or from_digest:
        assert found.code == code
        assert words in found.message
    assert bool(part(verdict, "values").notes) == (not whole and "holds what" not in found.message)


def test_a_difference_of_a_cast_on_the_way(tmp_path: Path) -> None:
    release = write_llama(tmp_path / "release", dtype=torch.float32)
    for whole in (True, False):
        model = loaded(release, "bfloat16").float()
        verdict = load_check(
            recorded(tmp_path / f"run-{whole}", model, whole=whole, dtype="float32"), release
        )
        assert ("values", "rounded-on-its-way") in codes(verdict)


def test_a_sign_of_zero_is_a_bit_too(tmp_path: Path) -> None:
    plain = write_llama(tmp_path / "plain")
    release = edited(plain, tmp_path / "release", lambda t: t[Q][0].zero_())
    model = loaded(release)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0].mul_(-1)
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert "signs of 32 zeros" in problem(verdict, "values-differ").message


def test_a_fill_that_was_left(release: Path, tmp_path: Path) -> None:
    verdict = changed(release, tmp_path, lambda t: t[DOWN].fill_(float("nan")))
    assert codes(verdict) == {("filled", "still-filled")}
    assert problem(verdict, "still-filled").place.tensor == DOWN


def test_a_part_that_was_left(release: Path, tmp_path: Path) -> None:
    verdict = changed(release, tmp_path, lambda t: t[DOWN][30:].fill_(float("nan")))
    assert codes(verdict) == {("filled", "partly-filled"), ("values", "truncated")}


def test_what_differs_between_two_loads(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    model = loaded(release)
    with torch.no_grad():
        model.model.norm.weight.fill_(3)
    run.model(model, "loaded-1")
    run.model(loaded(release), "loaded-2")
    verdict = load_check(run.seal(), release)
    assert codes(verdict) == {("filled", "differs-between-loads")}


def test_a_load_into_no_memory_is_no_look_at_what_was_filled(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    for when in ("loaded-1", "loaded-2"):
        run.model(loaded(release), when)
    empty = part(load_check(run.seal(), release), "filled")
    assert (empty.applicable, empty.outcome) == (False, Outcome.NOT_EVALUATED)
    assert "none of 21 tensors held memory before the load" in empty.reason
    fill = {"format": 1, "pass": 1, "point": "before-load", "pattern": "nan", "names": [DOWN, "scratch"]}
    run.append("records/rank-00000/fills.jsonl", [fill])
    looked = part(load_check(run.seal(), release), "filled")
    assert (looked.applicable, looked.outcome) == (True, Outcome.PASS)
    assert str(looked.coverage) == "1 of 21 tensors"
    assert "1 of 21 tensors held memory" in looked.notes[0]
    assert "20 were made by the load from memory that nothing filled" in looked.notes[1]
    rest = [name for name, _ in loaded(release).named_parameters() if name != DOWN]
    made = [fill | {"pass": number, "point": "handed-out", "names": rest} for number in (1, 2)]
    run.append("records/rank-00000/fills.jsonl", made)
    whole = part(load_check(run.seal(), release), "filled")
    assert str(whole.coverage) == "21 of 21 tensors"
    (note,) = whole.notes
    assert note == (
        "1 of 21 tensors held memory that was filled before the loader wrote; 20 were made by the load, from"
        " memory that torch fills when it hands it out"
    )


def test_a_single_load_cannot_show_that_integers_were_loaded(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    run.model(loaded(release), "loaded-1")
    verdict = load_check(run.seal(), release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert codes(verdict) == {("filled", "one-load")}


@pytest.mark.parametrize("whole", [True, False])
def test_a_computed_buffer_that_was_overwritten(release: Path, tmp_path: Path, whole: bool) -> None:
    verdict = changed(release, tmp_path, lambda t: t["model.rotary_emb.inv_freq"][2:].mul_(1.01), whole=whole)
    assert codes(verdict) == {("buffers", "buffer-changed")}
    assert problem(verdict, "buffer-changed").place.tensor == "model.rotary_emb.inv_freq"


def test_a_computed_buffer_in_a_narrow_dtype(release: Path, tmp_path: Path) -> None:
    model = loaded(release)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.bfloat16()
    verdict = load_check(recorded(tmp_path / "run", model, dtype="bfloat16"), release)
    assert "the reference computes and keeps it in F32" in problem(verdict, "buffer-changed").message


def test_a_computed_buffer_unlike_when_it_was_built(release: Path, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", dtype="bfloat16")
    other = loaded(release)
    other.model.rotary_emb.inv_freq = other.model.rotary_emb.inv_freq * 2
    run.model(other, "built")
    for when in ("loaded-1", "loaded-2"):
        run.model(loaded(release), when)
    assert "when the model was built" in problem(load_check(run.seal(), release), "buffer-changed").message


def test_tied_weights_share_memory(tied: Path, tmp_path: Path) -> None:
    assert load_check(recorded(tmp_path / "right", loaded(tied)), tied).outcome is Outcome.PASS
    model = loaded(tied)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    verdict = load_check(recorded(tmp_path / "run", model), tied)
    assert codes(verdict) == {("ties", "not-tied")}
    assert problem(verdict, "not-tied").place.tensor == "lm_head.weight"


def test_a_tied_head_that_was_not_loaded(tied: Path, tmp_path: Path) -> None:
    model = loaded(tied)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    verdict = load_check(recorded(tmp_path / "run", model), tied)
    assert codes(verdict) == {("ties", "not-tied"), ("values", "re-initialised")}


def test_memory_that_is_shared_by_mistake(release: Path, tmp_path: Path) -> None:
    model = loaded(release)
    model.model.layers[1].self_attn.q_proj.weight = model.model.layers[0].self_attn.q_proj.weight
    verdict = load_check(recorded(tmp_path / "run", model), release)
    assert ("ties", "storage-shared") in codes(verdict)
    assert ("values", "permuted") in codes(verdict)


def test_names_that_are_missing_or_unexpected(release: Path, tmp_path: Path) -> None:
    model = loaded(release)
    model.model.layers[0].self_attn.q_proj.extra = torch.nn.Parameter(torch.zeros(3))
    del model.model.layers[1].mlp.up_proj
    verdict = load_check(recorded(tmp_path / "run", model), release)
    assert codes(verdict) == {("names", "tensor-missing"), ("names", "tensor-unexpected")}
    assert problem(verdict, "tensor-missing").place.tensor == "model.layers.1.mlp.up_proj.weight"


def test_another_shape(release: Path, tmp_path: Path) -> None:
    model = loaded(release)
    model.resize_token_embeddings(384)
    assert ("shapes", "shape-differs") in codes(load_check(recorded(tmp_path / "run", model), release))


def test_a_model_type_that_the_map_does_not_cover_is_never_a_fail(release: Path, tmp_path: Path) -> None:
    model = loaded(release)
    with torch.no_grad():
        model.model.norm.weight.fill_(3)
    run = recorded(tmp_path / "run", model)
    config = json.loads((release / "config.json").read_text())
    unknown = edited(release, tmp_path / "release", lambda _: None)
    (unknown / "config.json").write_text(json.dumps(config | {"model_type": "unheard_of"}))
    verdict = load_check(run, unknown)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert any("does not cover" in note for note in part(verdict, "names").notes)


@pytest.mark.parametrize("said", ["refused: the framework has no such model", "Traceback: it broke"])
def test_what_the_framework_refused_is_not_evaluated_and_what_broke_fails(
    release: Path, tmp_path: Path, said: str
) -> None:
    run = RunWriter(tmp_path / "run", world_size=2)
    run.exit(0, code=3)
    run.exit(1, code=15, stopped=True)
    run.write("logs/rank-00000.err", f"a warning\n{said}\n")
    verdict = load_check(run.seal(), release)
    if said.startswith("refused"):
        assert verdict.outcome is Outcome.NOT_EVALUATED
        assert "the framework refused it: the framework has no such model" in verdict.reason
    else:
        assert verdict.outcome is Outcome.FAIL
        assert ("ranks", "rank-died") in codes(verdict)
