"""The build check on models that transformers built: clean ones pass, faults are named at their place."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.errors import BadInput
from checks.references.packs import BUILT_IN
from checks.verdict import Caught, Outcome
from tests.checks import loaded_runs
from tests.checks.built_runs import REFUSED, BuiltWriter, build_check, built, model_of
from tests.checks.export_pairs import write_gpt_oss_pair, write_llama
from tests.checks.loaded_runs import problem
from tests.checks.verdict_parts import part

NORM = "model.layers.0.input_layernorm"
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "release")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tied") / "release", tied=True)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss_pair(tmp_path_factory.mktemp("oss"))[1]


def test_a_right_model_passes_with_every_part_judged(release: Path, tmp_path: Path) -> None:
    verdict = build_check(built(tmp_path / "run", release), release)
    assert verdict.outcome is Outcome.PASS
    assert str(part(verdict, "names").coverage) == "21 of 21 tensors"
    assert str(part(verdict, "buffers").coverage) == "2 of 2 buffers"
    computation, config = part(verdict, "computation").coverage, part(verdict, "config").coverage
    assert computation is not None
    assert computation.judged == computation.total > 50
    assert config is not None
    assert config.judged == config.total > 10
    assert Caught.MISSED not in {injection.result for injection in verdict.injected}


def test_an_mxfp4_release_and_two_equal_ranks_pass(gpt_oss: Path, tmp_path: Path) -> None:
    verdict = build_check(built(tmp_path / "run", gpt_oss, ranks=2), gpt_oss)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert part(verdict, "replicas").outcome is Outcome.PASS
    assert "router" in part(verdict, "computation").notes[0]


def sets(name: str, attribute: str, value: object) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        setattr(model.get_submodule(name), attribute, value)

    return change


def configures(**values: object) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for key, value in values.items():
            setattr(model.config, key, value)

    return change


def drops(model: Any) -> None:
    del model.model.layers[1].mlp.down_proj


def adds(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(32, dtype=torch.bfloat16))


def widens(model: Any) -> None:
    head = torch.nn.Parameter(torch.zeros(384, 32, dtype=torch.bfloat16))
    model.lm_head.weight = head


def casts(model: Any) -> None:
    model.get_submodule(NORM).float()


def freezes(model: Any) -> None:
    model.model.layers[0].requires_grad_(False)


def turns_base(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.pow(0.9)


def evaluates(model: Any) -> None:
    model.model.layers[1].eval()


def tanh(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()


@pytest.mark.parametrize(
    ("change", "where", "code", "place"),
    [
        (sets(NORM, "variance_epsilon", 1e-5), "computation", "value-differs", "variance_epsilon"),
        (sets("model.layers.1.self_attn", "scaling", 1.0), "computation", "value-differs", "scaling"),
        (sets("model.layers.1.self_attn", "is_causal", False), "computation", "value-differs", "is_causal"),
        (tanh, "computation", "value-differs", "act_fn"),
        (configures(rms_norm_eps=1e-5), "config", "config-differs", "rms_norm_eps"),
        (configures(rope_parameters={"rope_theta": 5e5}), "config", "config-differs", "rope.rope_theta"),
        (configures(tie_word_embeddings=True), "config", "config-differs", "tie_word_embeddings"),
        (drops, "names", "tensor-missing", "model.layers.1.mlp.down_proj.weight"),
        (adds, "names", "tensor-unexpected", f"{Q}.bias"),
        (widens, "shapes", "shape-differs", "lm_head.weight"),
        (casts, "dtypes", "dtype-differs", f"{NORM}.weight"),
        (freezes, "trained", "frozen-though-trained", "model.layers.0"),
        (turns_base, "buffers", "buffer-differs", "model.rotary_emb.inv_freq"),
        (evaluates, "modes", "not-in-training", "model.layers.1"),
    ],
)
def test_a_fault_is_named_at_its_place(
    release: Path, tmp_path: Path, change: Callable[[Any], None], where: str, code: str, place: str
) -> None:
    verdict = build_check(built(tmp_path / "run", release, change), release)
    assert verdict.outcome is Outcome.FAIL
    found = [each for each in part(verdict, where).problems if each.code == code]
    assert any(place in str(each.place) for each in found), verdict.reason


def test_frozen_patterns_decide_the_trained_set(release: Path, tmp_path: Path) -> None:
    frozen = ["model.layers.0.*"]
    right = build_check(built(tmp_path / "right", release, freezes, frozen=frozen), release)
    assert right.outcome is Outcome.PASS
    wrong = build_check(built(tmp_path / "wrong", release, frozen=frozen), release)
    assert problem(wrong, "trained-though-frozen").place.tensor == "model.layers.0.input_layernorm.weight"


def test_an_untied_head_fails(tied: Path, tmp_path: Path) -> None:
    def unties(model: Any) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())

    assert build_check(built(tmp_path / "right", tied), tied).outcome is Outcome.PASS
    verdict = build_check(built(tmp_path / "wrong", tied, unties), tied)
    assert problem(verdict, "not-tied").place.tensor == "lm_head.weight"


def test_one_rank_with_other_bytes_or_values_is_named(release: Path, tmp_path: Path) -> None:
    def changes(model: Any) -> None:
        with torch.no_grad():
            model.get_submodule(Q).weight[0, 0] += 1
        model.get_submodule(NORM).variance_epsilon = 0.5

    verdict = build_check(built(tmp_path / "run", release, changes, ranks=2), release)
    assert problem(verdict, "replicas-differ").place.rank == 1
    differs = problem(verdict, "value-differs").place
    assert (differs.tensor, differs.rank) == (NORM, 1)


def test_a_dropout_of_the_recipe_is_expected(release: Path, tmp_path: Path) -> None:
    def drops_out(model: Any) -> None:
        model.config.attention_dropout = 0.25
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.25

    assert (
        build_check(built(tmp_path / "a", release, drops_out, dropout=0.25), release).outcome is Outcome.PASS
    )
    assert build_check(built(tmp_path / "b", release, drops_out), release).outcome is Outcome.FAIL


class Adapted(torch.nn.Module):
    """A linear layer with a LoRA adapter, its parts named as peft names them."""

    def __init__(self, base: torch.nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, base.out_features, bias=False)})
        self.recorded_adapters = [
            {"adapter": "default", "rank": rank, "alpha": alpha, "scaling": alpha / rank, "active": True,
             "merged": False}
        ]  # fmt: skip


class Wrapped(torch.nn.Module):
    """The names that peft puts before a model's: ``base_model.model``."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base_model, self.config = torch.nn.Module(), model.config
        self.base_model.model = model


def adapts(rank: int = 4, alpha: float = 8.0, layers: int = 2, names: tuple[str, ...] = ("q_proj",)) -> Any:
    def change(model: Any) -> torch.nn.Module:
        model.requires_grad_(False)
        for layer in model.model.layers[:layers]:
            for name in names:
                wrapped = Adapted(getattr(layer.self_attn, name), rank, alpha)
                setattr(layer.self_attn, name, wrapped)
        return Wrapped(model)

    return change


LORA = {"r": 4, "alpha": 8, "target_modules": ["q_proj"]}


def test_an_adapted_model_passes_under_the_names_it_has_without(release: Path, tmp_path: Path) -> None:
    verdict = build_check(built(tmp_path / "run", release, adapts(), lora=LORA), release)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert str(part(verdict, "adapters").coverage) == "2 of 2 adapted layers"
    assert str(part(verdict, "names").coverage) == "21 of 21 tensors"
    caught = {injection.fault for injection in verdict.injected if injection.result is Caught.CAUGHT}
    assert {"an adapter at half scale", "a parameter left frozen", "a parameter left trained"} <= caught


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (adapts(alpha=16.0), "scaling-differs"),
        (adapts(rank=8, alpha=16.0), "rank-differs"),
        (adapts(layers=1), "adapter-missing"),
        (adapts(names=("q_proj", "v_proj")), "adapter-unexpected"),
    ],
)
def test_a_wrong_adapter_is_named(release: Path, tmp_path: Path, change: Any, code: str) -> None:
    verdict = build_check(built(tmp_path / "run", release, change, lora=LORA), release)
    assert verdict.outcome is Outcome.FAIL
    assert "self_attn" in str(problem(verdict, code).place.tensor)


def test_an_adapter_that_no_recipe_asks_for_fails(release: Path, tmp_path: Path) -> None:
    verdict = build_check(built(tmp_path / "run", release, adapts()), release)
    assert problem(verdict, "adapter-unexpected").message.endswith("the recipe adapts nothing")


@pytest.mark.parametrize(
    "lora",
    [{"r": 4, "alpha": 8}, {**LORA, "layers_to_transform": [0]}, {**LORA, "target_modules": ["nothing"]}],
)
def test_targets_that_are_not_known_are_inconclusive(release: Path, tmp_path: Path, lora: Any) -> None:
    verdict = build_check(built(tmp_path / "run", release, adapts(), lora=lora), release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert problem(verdict, "targets-unknown")


def test_every_linear_layer_but_the_head_is_all_linear(release: Path, tmp_path: Path) -> None:
    lora = {**LORA, "target_modules": "all-linear"}
    verdict = build_check(built(tmp_path / "run", release, adapts(), lora=lora), release)
    missing = [each.place.tensor for each in part(verdict, "adapters").problems]
    assert len(missing) == 2 * 6  # k, v, o, gate, up and down of both layers
    assert "lm_head" not in missing


def test_without_modules_or_configuration_nothing_passes(release: Path, tmp_path: Path) -> None:
    run = BuiltWriter(tmp_path / "run", dtype="bfloat16")
    run.model(model_of(release), "built", whole=False, stride=1)
    lines = [{"kind": "model", "class": "Model", "training": True, "config": None}]
    run.append("records/rank-00000/built.jsonl", lines)
    verdict = build_check(run.seal(), release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert {"config-unknown", "value-unknown"} <= {each.code for _, each in verdict.problems()}


def test_without_any_record_nothing_is_evaluated(release: Path, tmp_path: Path) -> None:
    run = BuiltWriter(tmp_path / "run", dtype="bfloat16").seal()
    verdict = build_check(run, release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert problem(verdict, "nothing-recorded")


def test_a_model_that_the_reference_does_not_know_is_not_evaluated(release: Path, tmp_path: Path) -> None:
    run = built(tmp_path / "run", release)
    config = json.loads((release / "config.json").read_text())
    other = Path(shutil.copytree(release, tmp_path / "other"))
    (other / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    verdict = build_check(run, other)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "NoSuchModel" in verdict.reason


def test_a_run_of_another_procedure_is_bad_input(release: Path, tmp_path: Path) -> None:
    run = loaded_runs.recorded(tmp_path / "run", model_of(release), dtype="bfloat16")
    with pytest.raises(BadInput, match="not build"):
        build_check(run, release)


@pytest.mark.parametrize(
    "line",
    [{"kind": "module"}, {"kind": "model", "class": "x", "training": True}, {"kind": "x" * 5, "class": 3}],
)
def test_a_record_that_does_not_fit_is_inconclusive(release: Path, tmp_path: Path, line: Any) -> None:
    run = BuiltWriter(tmp_path / "run", dtype="bfloat16")
    run.built(model_of(release))
    run.append("records/rank-00000/built.jsonl", [line])
    assert build_check(run.seal(), release).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("lines", "outcome", "code"),
    [
        ([REFUSED], Outcome.PASS, ""),
        ([REFUSED | {"code": 0, "said": ""}], Outcome.FAIL, "accepted-though-refused"),
        ([REFUSED | {"said": "ImportError: torch"}], Outcome.INCONCLUSIVE, "refused-otherwise"),
        ([REFUSED | {"code": None, "timed_out": True}], Outcome.INCONCLUSIVE, "refused-otherwise"),
        ([REFUSED | {"name": "another"}], Outcome.NOT_EVALUATED, "refusal-not-launched"),
        ([], Outcome.NOT_EVALUATED, "refusal-not-launched"),
    ],
)
def test_what_is_documented_as_unsupported_has_to_be_refused(
    release: Path, tmp_path: Path, lines: list[dict[str, Any]], outcome: Outcome, code: str
) -> None:
    run = BuiltWriter(tmp_path / "run", dtype="bfloat16")
    run.built(model_of(release))
    run.refusals(*lines)
    verdict = build_check(run.seal(), release)
    assert verdict.outcome is outcome
    assert [each.code for each in part(verdict, "refused").problems] == ([code] if code else [])


def test_a_framework_without_cited_refusals_has_none_to_judge(release: Path, tmp_path: Path) -> None:
    pack = Path(shutil.copytree(BUILT_IN / "transformers", tmp_path / "pack"))
    text = (pack / "settings.toml").read_text()
    (pack / "settings.toml").write_text(text[: text.index("[[refusal]]")])
    verdict = build_check(built(tmp_path / "run", release), release, framework=str(pack))
    assert verdict.outcome is Outcome.PASS
    assert not part(verdict, "refused").applicable
