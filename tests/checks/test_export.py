"""The export check on real folders: clean pairs pass, each fault is found at its place."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from checks.verdict import Caught, Outcome
from tests.checks.export_pairs import (
    SIDE,
    Tensors,
    edit_json,
    edited,
    export_check,
    places,
    write_gpt_oss_pair,
    write_llama,
)
from tests.checks.verdict_parts import codes, part

Q = "model.layers.1.self_attn.q_proj.weight"
DOWN = "model.layers.0.mlp.experts.down_proj"
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "release")


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_gpt_oss_pair(tmp_path_factory.mktemp("gpt_oss"))


def test_a_release_dequantized_as_the_framework_documents_passes(gpt_oss: tuple[Path, Path]) -> None:
    release, export = gpt_oss
    verdict = export_check(release, export, framework="transformers")
    assert (verdict.outcome, codes(verdict)) == (Outcome.PASS, set())
    values = part(verdict, "values")
    total = len(load_file(export / "model.safetensors"))
    assert str(values.coverage) == f"{total} of {total} tensors"
    assert any("exports mxfp4 as bfloat16" in note and "5.24.0" in note for note in values.notes)
    results = {injection.fault: injection.result for injection in verdict.injected}
    assert results.pop("an unmerged adapter") is Caught.NOT_APPLICABLE
    assert results.pop("a lost processor") is Caught.NOT_APPLICABLE
    assert set(results.values()) == {Caught.CAUGHT}
    assert len(results) == 6


def test_without_a_documented_format_other_names_and_dtypes_fail(gpt_oss: tuple[Path, Path]) -> None:
    verdict = export_check(*gpt_oss)
    assert codes(verdict) == {
        ("names", "tensor-missing"),
        ("names", "tensor-unexpected"),
        ("config", "field-differs"),
    }
    assert f"{DOWN}_blocks" in places(verdict, "tensor-missing")


def test_a_transposed_square_down_projection_is_found_at_its_place(
    gpt_oss: tuple[Path, Path], tmp_path: Path
) -> None:
    release, export = gpt_oss

    def turn(tensors: Tensors) -> None:
        tensors[DOWN] = tensors[DOWN].transpose(1, 2)

    verdict = export_check(release, edited(export, tmp_path / "x", turn), framework="transformers")
    assert codes(verdict) == {("values", "transposed")}
    assert places(verdict, "transposed") == {DOWN}


def test_permuted_experts_are_found_at_their_place(gpt_oss: tuple[Path, Path], tmp_path: Path) -> None:
    release, export = gpt_oss

    def permute(tensors: Tensors) -> None:
        tensors[DOWN] = tensors[DOWN][[1, 0, 2, 3]]

    verdict = export_check(release, edited(export, tmp_path / "x", permute), framework="transformers")
    assert codes(verdict) == {("values", "permuted")}
    assert "2 of 4 experts" in verdict.reason


def test_blocks_encoded_otherwise_with_equal_values_pass(gpt_oss: tuple[Path, Path], tmp_path: Path) -> None:
    """4.0 at one scale is 2.0 at the next: encodings are not unique."""
    release, _ = gpt_oss

    def fours(tensors: Tensors) -> None:
        tensors[f"{DOWN}_blocks"][0, 0] = 0x66

    def twos(tensors: Tensors) -> None:
        tensors[f"{DOWN}_blocks"][0, 0] = 0x44
        tensors[f"{DOWN}_scales"][0, 0] += 1

    left = edited(release, tmp_path / "left", fours)
    right = edited(left, tmp_path / "right", twos)
    verdict = export_check(left, right)
    assert part(verdict, "values").outcome is Outcome.PASS
    assert any("encoded otherwise" in note for note in part(verdict, "values").notes)
    wrong = edited(right, tmp_path / "wrong", lambda tensors: tensors[f"{DOWN}_scales"][1, 1].add_(1))
    verdict = export_check(left, wrong)
    assert codes(verdict) == {("values", "values-differ")}
    assert places(verdict, "values-differ") == {f"{DOWN}_blocks"}


def _drop(tensors: Tensors) -> None:
    tensors.pop(Q)


def _rename(tensors: Tensors) -> None:
    tensors[f"base_model.{Q}"] = tensors.pop(Q)


def _add(tensors: Tensors) -> None:
    tensors["extra"] = torch.ones(3)


def _cast(tensors: Tensors) -> None:
    tensors[Q] = tensors[Q].float()


def _reshape(tensors: Tensors) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = tensors[name].T


def _spoil(tensors: Tensors) -> None:
    tensors[Q][3, 4] = float("nan")


def _one(tensors: Tensors) -> None:
    tensors[Q][3, 4] += 1


def _turn(tensors: Tensors) -> None:
    tensors[Q] = tensors[Q].T


def _exchange(tensors: Tensors) -> None:
    other = Q.replace("q_proj", "k_proj")
    tensors[Q], tensors[other] = tensors[other], tensors[Q]


@pytest.mark.parametrize(
    ("change", "found", "place"),
    [
        (_drop, {("names", "tensor-missing"), ("reload", "key-missing")}, Q),
        (
            _rename,
            {("names", "tensor-renamed"), ("reload", "key-missing"), ("reload", "key-unexpected")},
            Q,
        ),
        (_add, {("names", "tensor-unexpected"), ("reload", "key-unexpected")}, "extra"),
        (_cast, {("dtypes", "dtype-differs")}, Q),
        (_spoil, {("values", "not-finite")}, Q),
        (_one, {("values", "values-differ")}, Q),
        (_turn, {("values", "transposed")}, Q),
        (_exchange, {("values", "permuted")}, Q),
    ],
)
def test_each_fault_of_a_tensor_is_found_at_its_place_and_nothing_else(
    llama: Path,
    tmp_path: Path,
    change: Callable[[Tensors], object],
    found: set[tuple[str, str]],
    place: str,
) -> None:
    verdict = export_check(llama, edited(llama, tmp_path / "x", change))
    assert (verdict.outcome, codes(verdict)) == (Outcome.FAIL, found)
    assert all(place in places(verdict, code) for part, code in found if part != "reload")


def test_another_shape_fails_and_says_that_axes_are_swapped(llama: Path, tmp_path: Path) -> None:
    verdict = export_check(llama, edited(llama, tmp_path / "x", _reshape))
    assert ("shapes", "shape-differs") in codes(verdict)
    problem = part(verdict, "shapes").problems[0]
    assert "axes are swapped" in problem.message
    assert (problem.expected, problem.found) == (f"[{SIDE}, 48]", f"[48, {SIDE}]")


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("generation_config.json", {("generation_config", "file-missing")}),
        ("chat_template.jinja", {("chat_template", "template-missing")}),
        ("tokenizer.json", {("tokenizer", "file-missing")}),
        ("config.json", {("config", "file-missing")}),
    ],
)
def test_a_missing_file_is_found(llama: Path, tmp_path: Path, file: str, found: set[tuple[str, str]]) -> None:
    shutil.copytree(llama, tmp_path / "x")
    (tmp_path / "x" / file).unlink()
    verdict = export_check(llama, tmp_path / "x")
    assert (verdict.outcome, codes(verdict)) == (Outcome.FAIL, found)


def test_an_export_without_a_tokenizer_has_one_problem_and_says_what_follows(
    llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(llama, tmp_path / "x")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "x" / name).unlink()
    verdict = export_check(llama, tmp_path / "x")
    (problem,) = (problem for _, problem in verdict.problems())
    assert problem.message == (
        "tokenizer.json is missing from the export; tokenizer_config.json with it: the exporter wrote no "
        "tokenizer"
    )
    template = part(verdict, "chat_template")
    assert (template.outcome, "see tokenizer" in template.reason) == (Outcome.NOT_EVALUATED, True)
    shutil.copy(llama / "tokenizer_config.json", tmp_path / "x")
    assert codes(export_check(llama, tmp_path / "x")) == {
        ("tokenizer", "file-missing"),
        ("chat_template", "template-missing"),
    }


def test_a_changed_file_is_found_at_its_field(llama: Path, tmp_path: Path) -> None:
    export = tmp_path / "x"
    shutil.copytree(llama, export)
    edit_json(export / "config.json", rms_norm_eps=1e-5)
    edit_json(export / "generation_config.json", eos_token_id=7)
    edit_json(export / "tokenizer_config.json", eos_token="<s>")
    (export / "chat_template.jinja").write_text("{{ messages }}")
    verdict = export_check(llama, export)
    assert codes(verdict) == {
        ("config", "field-differs"),
        ("generation_config", "field-differs"),
        ("tokenizer", "tokenizer-differs"),
        ("chat_template", "template-differs"),
    }
    fields = {problem.place.field for _, problem in verdict.problems()}
    assert fields == {"rms_norm_eps", "eos_token_id", "eos_token", None}


def test_a_file_that_is_no_json_is_the_exports_fault(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "x")
    (tmp_path / "x" / "generation_config.json").write_text("{")
    verdict = export_check(llama, tmp_path / "x")
    assert codes(verdict) == {("generation_config", "file-unreadable")}


def test_signs_of_zero_are_counted_and_pass(llama: Path, tmp_path: Path) -> None:
    zeros = edited(llama, tmp_path / "zeros", lambda tensors: tensors[Q][:2].zero_())
    flipped = edited(zeros, tmp_path / "flipped", lambda tensors: tensors[Q][0].fill_(-0.0))
    verdict = export_check(zeros, flipped)
    assert (verdict.outcome, codes(verdict)) == (Outcome.PASS, set())
    measured = {m.name: m.value for m in part(verdict, "values").measurements}
    assert measured["signs of zero that differ"] == SIDE


def test_not_a_number_in_the_release_is_noted_and_equal_to_itself(llama: Path, tmp_path: Path) -> None:
    release = edited(llama, tmp_path / "release", _spoil)
    shutil.copytree(release, tmp_path / "export")
    verdict = export_check(release, tmp_path / "export")
    assert codes(verdict) == set()
    assert any(f"1 NaN or infinities in {Q}" in note for note in part(verdict, "values").notes)


def test_a_tied_head_may_be_left_out_or_written_but_not_differ(tmp_path: Path) -> None:
    tied = write_llama(tmp_path / "tied", tied=True)
    embedding = "model.embed_tokens.weight"

    def write_out(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors[embedding].clone()

    both = edited(tied, tmp_path / "both", write_out)
    for original, export in ((tied, both), (both, tied)):
        verdict = export_check(original, export)
        assert codes(verdict) == set()
        assert any("tie" in note for note in part(verdict, "names").notes)
    other = edited(both, tmp_path / "other", lambda tensors: tensors["lm_head.weight"][0].add_(1))
    assert ("names", "tensor-unexpected") in codes(export_check(tied, other))
    untied = write_llama(tmp_path / "untied")
    lost = edited(untied, tmp_path / "lost", lambda tensors: tensors.pop("lm_head.weight"))
    assert ("names", "tensor-missing") in codes(export_check(untied, lost))


def _train(tensors: Tensors) -> None:
    generator = torch.Generator().manual_seed(5)
    for value in tensors.values():
        value.add_((torch.randn(value.shape, generator=generator) * 0.003).to(value.dtype))


def test_a_trained_export_without_a_reference_is_inconclusive(llama: Path, tmp_path: Path) -> None:
    export = edited(llama, tmp_path / "x", _train)
    verdict = export_check(llama, export)
    assert (verdict.outcome, codes(verdict)) == (Outcome.INCONCLUSIVE, {("values", "looks-trained")})
    assert "--trained" in verdict.next_step
    (problem,) = part(verdict, "values").problems
    before, after = (load_file(folder / "model.safetensors") for folder in (llama, export))
    changes = {
        name: float(torch.linalg.norm((after[name] - value).float()) / torch.linalg.norm(value.float()))
        for name, value in before.items()
    }
    assert problem.place.tensor == max(changes, key=changes.__getitem__)
    assert float(problem.message.split()[-1]) == pytest.approx(max(changes.values()), rel=0.01)
    others = {
        entry.name: entry.outcome for entry in verdict.parts if entry.applicable and entry.name != "values"
    }
    assert set(others.values()) == {Outcome.PASS}


def test_a_trained_export_does_not_look_quantised(llama: Path, tmp_path: Path) -> None:
    problem = part(export_check(llama, edited(llama, tmp_path / "x", _train)), "values").problems[0]
    assert problem.message.startswith("looks trained: ")


def _through_int8(tensors: Tensors) -> None:
    for value in tensors.values():
        scale = value.float().abs().max() / 127
        value.copy_((torch.round(value.float() / scale) * scale).to(value.dtype))


def _through_int4(tensors: Tensors) -> None:
    for value in tensors.values():
        groups = value.float().reshape(-1, 32 if value.numel() % 32 == 0 else value.numel())
        scale = groups.abs().amax(dim=1, keepdim=True) / 7
        value.copy_((torch.round(groups / scale) * scale).reshape(value.shape).to(value.dtype))


def _through_fp8(tensors: Tensors) -> None:
    for value in tensors.values():
        scale = value.float().abs().max() / 448
        value.copy_(((value.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(value.dtype))


@pytest.mark.parametrize(
    ("quantise", "levels"), [(_through_int8, 256), (_through_fp8, 256), (_through_int4, 16)]
)
def test_a_quantised_export_says_that_it_looks_so(
    llama: Path, tmp_path: Path, quantise: Callable[[Tensors], None], levels: int
) -> None:
    verdict = export_check(llama, edited(llama, tmp_path / "x", quantise))
    assert (verdict.outcome, codes(verdict)) == (Outcome.INCONCLUSIVE, {("values", "looks-trained")})
    assert "looks quantised" in verdict.reason
    assert f"at most {levels} distinct values" in verdict.reason
    assert "8 or 4 bits" in verdict.next_step


def test_a_fault_in_a_trained_export_is_still_a_failure(llama: Path, tmp_path: Path) -> None:
    def train_and_turn(tensors: Tensors) -> None:
        _train(tensors)
        tensors[Q] = tensors[Q].T
        tensors[NORM] = torch.randn(SIDE).to(torch.bfloat16)

    verdict = export_check(llama, edited(llama, tmp_path / "x", train_and_turn))
    assert verdict.outcome is Outcome.FAIL
    assert places(verdict, "transposed") == {Q}
    assert places(verdict, "values-differ") == {NORM}
    assert ("values", "looks-trained") in codes(verdict)


def test_training_explains_no_change_of_integers(llama: Path, tmp_path: Path) -> None:
    table = "model.layers.0.table"
    release = edited(llama, tmp_path / "release", lambda tensors: tensors.update({table: torch.arange(9)}))

    def train_and_renumber(tensors: Tensors) -> None:
        numbers = tensors.pop(table)
        _train(tensors)
        numbers[4] = 77
        tensors[table] = numbers

    verdict = export_check(release, edited(release, tmp_path / "x", train_and_renumber))
    assert (verdict.outcome, places(verdict, "values-differ")) == (Outcome.FAIL, {table})


def test_the_checkpoint_that_training_ended_with_decides(llama: Path, tmp_path: Path) -> None:
    export = edited(llama, tmp_path / "x", _train)
    shutil.copytree(export, tmp_path / "trained")
    assert export_check(llama, export, trained=tmp_path / "trained").outcome is Outcome.PASS
    wide = edited(export, tmp_path / "wide", lambda tensors: _widen(tensors))
    assert export_check(llama, export, trained=wide).outcome is Outcome.PASS
    wrong = edited(export, tmp_path / "wrong", _one)
    verdict = export_check(llama, wrong, trained=tmp_path / "trained")
    assert (codes(verdict), places(verdict, "values-differ")) == ({("values", "values-differ")}, {Q})
    cast = edited(export, tmp_path / "cast", _cast)
    ended = shutil.copytree(cast, tmp_path / "ended")
    assert codes(export_check(llama, cast, trained=ended)) == {("dtypes", "dtype-differs")}
    lacking = edited(export, tmp_path / "lacking", _drop)
    verdict = export_check(llama, export, trained=lacking)
    assert (verdict.outcome, codes(verdict)) == (Outcome.NOT_EVALUATED, {("values", "reference-missing")})


def _widen(tensors: Tensors) -> None:
    """Float32 values that round to the export's: what a trainer's master weights are."""
    for name, value in tensors.items():
        tensors[name] = value.float() * (1 + 2.0**-12)


def test_code_of_its_own_is_never_run_and_unknown_architectures_are_not_evaluated(
    llama: Path, tmp_path: Path
) -> None:
    for field in ({"auto_map": {"AutoModel": "evil.Model"}}, {"architectures": ["NeverHeardOf"]}):
        release, export = tmp_path / f"release{len(str(field))}", tmp_path / f"export{len(str(field))}"
        for folder in (release, export):
            shutil.copytree(llama, folder)
            edit_json(folder / "config.json", **field)
            (folder / "evil.py").write_text("raise SystemExit('it was run')")
        verdict = export_check(release, export)
        assert verdict.outcome is Outcome.NOT_EVALUATED
        assert part(verdict, "reload").outcome is Outcome.NOT_EVALUATED
        assert part(verdict, "reload").reason
        assert part(verdict, "values").outcome is Outcome.PASS


def test_the_verdict_names_its_evidence_and_coverage(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "x")
    verdict = export_check(llama, tmp_path / "x")
    weights = next(e for e in verdict.evidence if e.path == str(tmp_path / "x" / "model.safetensors"))
    assert weights.sha256 == hashlib.sha256((llama / "model.safetensors").read_bytes()).hexdigest()
    assert weights.role == "export"
    names = {Path(e.path).name for e in verdict.evidence}
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"} <= names
    total = len(load_file(llama / "model.safetensors"))
    assert str(part(verdict, "values").coverage) == f"{total} of {total} tensors"


def test_a_configuration_that_describes_a_giant_model_is_not_built(llama: Path, tmp_path: Path) -> None:
    release, export = tmp_path / "release", tmp_path / "export"
    for folder in (release, export):
        shutil.copytree(llama, folder)
        edit_json(folder / "config.json", vocab_size=10**9)
    verdict = export_check(release, export)
    assert part(verdict, "reload").outcome is Outcome.NOT_EVALUATED
    assert "more than are loaded" in part(verdict, "reload").reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.update({Q: tensors[Q].T}), "layout"),
        (lambda tensors: tensors.update({Q: tensors[Q][torch.arange(SIDE - 1, -1, -1)]}), "order"),
        (lambda tensors: tensors.update({Q: tensors[Q] * 2}), "training does not do this"),
        (lambda tensors: tensors.update({Q: -tensors[Q]}), "training does not do this"),
        (lambda tensors: tensors[Q].view(-1)[:1].fill_(float("inf")), "overflow"),
        (lambda tensors: tensors[Q].view(-1)[:1].add_(1e-2), "--trained"),
    ],
)
def test_the_next_step_fits_the_difference(
    llama: Path, tmp_path: Path, change: Callable[[Tensors], object], says: str
) -> None:
    """Only what training may do is answered with the name of a trained checkpoint."""
    verdict = export_check(llama, edited(llama, tmp_path / "x", change))
    assert places(verdict, part(verdict, "values").problems[0].code) == {Q}
    assert says in verdict.next_step
    assert ("--trained" in verdict.next_step) == (says == "--trained")


def test_a_difference_from_the_trained_checkpoint_is_not_answered_with_naming_it(
    llama: Path, tmp_path: Path
) -> None:
    trained = edited(llama, tmp_path / "trained", _train)
    export = edited(trained, tmp_path / "x", lambda tensors: tensors[Q].view(-1)[:1].add_(1e-2))
    verdict = export_check(llama, export, trained=trained)
    assert codes(verdict) == {("values", "values-differ")}
    assert "not the one training ended with" in verdict.next_step


@pytest.mark.parametrize("change", [_drop, _rename, _add, _cast])
def test_differences_of_names_and_dtypes_say_what_to_do_next(
    llama: Path, tmp_path: Path, change: Callable[[Tensors], object]
) -> None:
    verdict = export_check(llama, edited(llama, tmp_path / "x", change))
    assert verdict.problems()
    assert all(problem.next_step for _, problem in verdict.problems())
