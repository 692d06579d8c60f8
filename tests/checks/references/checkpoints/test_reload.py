"""The reload in the reference implementation: quantized weights, and the meta route of large checkpoints."""

import json
import shutil
from pathlib import Path

import pytest

from checks.references.checkpoints import reload as reloading
from checks.references.checkpoints.reload import Reloaded, reload
from tests.checks.export_pairs import edit_json, edited, write_gpt_oss_pair, write_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss_pair(tmp_path_factory.mktemp("gpt-oss"))[0]


@pytest.fixture(params=["values", "meta"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "meta":
        monkeypatch.setattr(reloading, "RELOAD_BYTES", 0)
    return request.param


def reloaded(folder: Path) -> Reloaded:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return reload(folder, json.loads((folder / "config.json").read_text()), size)


@pytest.mark.parametrize("release", ["llama", "quantized"])
def test_a_whole_checkpoint_reloads_cleanly(release: str, route: str, request: pytest.FixtureRequest) -> None:
    found = reloaded(request.getfixturevalue(release))
    assert found == Reloaded(on_meta=route == "meta")


def test_a_missing_and_an_unexpected_tensor_are_named(llama: Path, route: str, tmp_path: Path) -> None:
    def change(tensors: dict) -> None:
        tensors["model.extra.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")

    found = reloaded(edited(llama, tmp_path / "edited", change))
    assert found.missing == {"model.layers.0.mlp.up_proj.weight"}
    assert found.unexpected == {"model.extra.weight"}
    assert not found.error


def test_a_missing_tensor_of_a_quantized_checkpoint_is_named(quantized: Path, tmp_path: Path) -> None:
    found = reloaded(
        edited(quantized, tmp_path / "edited", lambda tensors: tensors.pop("model.layers.0.self_attn.sinks"))
    )
    assert found.missing == {"model.layers.0.self_attn.sinks"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "gpt_nope"}, "gpt_nope"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "mistral"}, "model_type 'mistral' is a MistralConfig"),
        (
            {"architectures": ["MistralForCausalLM"]},
            "the architecture MistralForCausalLM takes a MistralConfig",
        ),
        ({"num_hidden_layers": "three"}, ""),
    ],
    ids=["unknown-type", "no-type", "other-type", "other-architecture", "unfit-field"],
)
def test_a_configuration_that_the_reference_does_not_read_is_an_error(
    llama: Path, route: str, tmp_path: Path, fields: dict, said: str
) -> None:
    """The model class that ``architectures`` names would load some of them all the same."""
    folder = tmp_path / "edited"
    shutil.copytree(llama, folder)
    edit_json(folder / "config.json", **fields)
    found = reloaded(folder)
    assert found.error
    assert said in found.error
