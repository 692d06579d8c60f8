"""Configurations equal in meaning, as the reference implementation reads them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from checks.references.checkpoints.configs import (
    _UNSET,
    compare_added_generation_config,
    compare_config,
    compare_generation_config,
)
from checks.verdict import Outcome
from tests.checks.export_pairs import edit_json, write_llama

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}


def _fields(original: dict[str, Any], export: dict[str, Any], **how: bool) -> dict[str, Outcome]:
    result = compare_config(original, export, **how)
    return {str(problem.place.field): problem.outcome for problem in result.problems}


def test_spelling_defaults_and_the_writer_are_no_difference() -> None:
    export = {name: value for name, value in LLAMA.items() if name not in ("torch_dtype", "rope_theta")}
    export |= {
        "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "transformers_version": "5.24.0",
        "_name_or_path": "/somewhere",
        "mlp_bias": False,
        "num_key_value_heads": 4,
    }
    result = compare_config(LLAMA, export)
    assert result.problems == []
    assert "mlp_bias" in result.notes[0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rope_theta": 10000.0}, "rope_parameters.rope_theta"),
        ({"torch_dtype": "float32"}, "dtype"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"architectures": ["LlamaModel"]}, "architectures"),
        ({"eos_token_id": [2, 3]}, "eos_token_id"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"never_heard_of": 1}, "never_heard_of"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
    ],
)
def test_another_meaning_is_found_at_its_field(change: dict[str, Any], field: str) -> None:
    assert _fields(LLAMA, {**LLAMA, **change}) == {field: Outcome.FAIL}


def test_a_dropped_field_that_was_no_default_is_found() -> None:
    export = {name: value for name, value in LLAMA.items() if name != "rope_theta"}
    assert _fields(LLAMA, export) == {"rope_parameters.rope_theta": Outcome.FAIL}


def test_an_unknown_architecture_is_compared_as_text() -> None:
    original = {"model_type": "not_in_the_library", "width": 4}
    assert _fields(original, {**original, "transformers_version": "1"}) == {}
    assert _fields(original, {**original, "width": 5}) == {"width": Outcome.FAIL}
    assert _fields(original, {"model_type": "not_in_the_library"}) == {"width": Outcome.FAIL}
    assert _fields(original, {**original, "depth": 5}) == {"depth": Outcome.INCONCLUSIVE}


def test_a_value_of_another_kind_is_a_difference_not_a_crash() -> None:
    fields = _fields(LLAMA, {**LLAMA, "hidden_size": "wide", "layer_types": 3})
    assert fields["hidden_size"] is Outcome.FAIL
    assert _fields(LLAMA, {**LLAMA, "attention_bias": 0}) != {}


def test_quantization_may_be_dropped_only_where_it_is_documented() -> None:
    original = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert _fields(original, LLAMA) == {"quantization_config": Outcome.FAIL}
    assert _fields(original, LLAMA, quantization_dropped=True) == {}
    kept = compare_config(original, original, quantization_dropped=True).problems
    assert [(p.code, p.place.field) for p in kept] == [("field-differs", "quantization_config")]
    assert kept[0].next_step
    assert _fields(LLAMA, LLAMA, quantization_dropped=True) == {}


def test_an_adapter_that_unties_the_head_needs_an_untied_configuration() -> None:
    tied = {**LLAMA, "tie_word_embeddings": True}
    assert _fields(tied, tied, untied=True) == {"tie_word_embeddings": Outcome.FAIL}
    assert _fields(tied, {**tied, "tie_word_embeddings": False}, untied=True) == {}
    assert _fields(tied, {**tied, "tie_word_embeddings": False}) == {"tie_word_embeddings": Outcome.FAIL}


def test_generation_configurations() -> None:
    original = {"eos_token_id": [2], "do_sample": True, "temperature": 0.6, "transformers_version": "4.0"}
    same = {"eos_token_id": 2, "do_sample": True, "temperature": 0.6, "_from_model_config": True}
    assert compare_generation_config(original, same).problems == []
    lost = compare_generation_config(original, {"eos_token_id": 2, "do_sample": True})
    assert [problem.place.field for problem in lost.problems] == ["temperature"]


def test_an_added_generation_config_has_to_say_what_the_configuration_implies() -> None:
    added = compare_added_generation_config(LLAMA, {"eos_token_id": 2, "bos_token_id": 1})
    assert added is not None
    assert added.problems == []
    for wrong in ({"eos_token_id": 3, "bos_token_id": 1}, {"bos_token_id": 1}, {**LLAMA, "temperature": 0.5}):
        found = compare_added_generation_config(LLAMA, wrong)
        assert found is not None
        assert found.problems != []
    assert compare_added_generation_config({"model_type": "not_in_the_library"}, {}) is None


def test_two_names_of_the_dtype_that_contradict_each_other_are_found() -> None:
    both = {**LLAMA, "dtype": "bfloat16", "torch_dtype": "float32"}
    result = compare_config(LLAMA, both)
    assert [(p.code, p.place.field) for p in result.problems] == [("field-differs", "torch_dtype")]
    assert result.problems[0].next_step
    assert _fields(LLAMA, {**LLAMA, "dtype": "bfloat16"}) == {}
    assert _fields(both, both) == {}
    rope = {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert _fields(LLAMA, rope) == {}
    assert _fields(rope, {**rope, "rope_theta": 10000.0}) == {"rope_theta": Outcome.FAIL}
    inner = {"model_type": "not_in_the_library", "text_config": {"dtype": "bfloat16"}}
    wrong = {**inner, "text_config": {"dtype": "bfloat16", "torch_dtype": "float16"}}
    assert _fields(inner, wrong) == {"text_config.torch_dtype": Outcome.FAIL}


def test_stop_ids_are_a_set() -> None:
    """Generation ends at any of them, so their order has no meaning; a lost one has."""
    original = {**LLAMA, "eos_token_id": [1, 2]}
    result = compare_config(original, {**LLAMA, "eos_token_id": [2, 1]})
    assert result.problems == []
    assert "another order" in result.notes[0]
    assert compare_generation_config({"eos_token_id": [1, 2]}, {"eos_token_id": [2, 1, 1]}).problems == []
    lost = compare_generation_config({"eos_token_id": [1, 2]}, {"eos_token_id": [2]})
    assert [problem.place.field for problem in lost.problems] == ["eos_token_id"]
    ordered = {"model_type": "not_in_the_library", "layer_types": ["a", "b"]}
    assert _fields(ordered, {**ordered, "layer_types": ["b", "a"]}) == {"layer_types": Outcome.FAIL}


def test_every_difference_says_what_to_do_next() -> None:
    unknown = {"model_type": "not_in_the_library", "width": 4}
    for problems in (
        compare_config(LLAMA, {**LLAMA, "mlp_bias": True}).problems,
        compare_config(unknown, {**unknown, "depth": 1}).problems,
    ):
        assert problems
        assert all(problem.next_step for problem in problems)


def test_a_cache_setting_changes_no_result_where_a_generation_config_says_how_to_generate() -> None:
    """The Trainer of transformers 5 writes ``use_cache`` false into the model that it trains."""
    export = {**LLAMA, "use_cache": False}
    result = compare_config(LLAMA, export, generates_by_file=True)
    assert result.problems == []
    assert "use_cache is false, in the release true" in " ".join(result.notes)
    (problem,) = compare_config(LLAMA, export).problems
    assert (problem.place.field, problem.outcome) == ("use_cache", Outcome.FAIL)
    assert "computes earlier tokens again" in problem.message


@pytest.mark.parametrize("by_file", [True, False])
def test_generation_with_the_reference_bears_out_what_is_said_of_the_cache(
    tmp_path: Path, by_file: bool
) -> None:
    """Tokens and logits are equal either way; without generation_config.json the prefix is computed anew."""
    release = write_llama(tmp_path / "release")
    (release / "generation_config.json").write_text('{"eos_token_id": 2}')
    seen = {}
    for use_cache in (True, False):
        edit_json(release / "config.json", use_cache=use_cache)
        if not by_file:
            (release / "generation_config.json").unlink(missing_ok=True)
        seen[use_cache] = _generated(release)
    assert seen[True][:2] == seen[False][:2]
    assert seen[True][2] == [3, 1, 1]
    assert seen[False][2] == ([3, 1, 1] if by_file else [3, 4, 5])


def _generated(release: Path) -> tuple[list[int], list[float], list[int]]:
    """Generated ids, logits of the prompt, and how many tokens each forward call of generation took."""
    model = AutoModelForCausalLM.from_pretrained(release, dtype=torch.float32)
    prompt, lengths = torch.tensor([[5, 6, 7]]), []
    logits = model(prompt).logits.flatten().tolist()
    model.model.embed_tokens.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    ids = model.generate(prompt, min_new_tokens=3, max_new_tokens=3, do_sample=False)
    return ids[0].tolist(), logits, lengths


def test_a_router_setting_that_a_trainer_saved_is_a_difference_and_says_what_it_does() -> None:
    config = {"model_type": "gpt_oss", "num_hidden_layers": 2, "output_router_logits": False}
    (problem,) = compare_config(config, {**config, "output_router_logits": True}).problems
    assert (problem.place.field, problem.outcome) == ("output_router_logits", Outcome.FAIL)
    assert "generated tokens are the same" in problem.message
    assert "training goes on otherwise" in problem.message


def test_values_that_generation_takes_anyway_may_be_left_out() -> None:
    """transformers 4 leaves its defaults out when it saves, transformers 5 writes what it was given."""
    from transformers import GenerationConfig

    known = GenerationConfig._get_default_generation_params()
    assert {name: known[name] for name in _UNSET} == _UNSET
    released = {"eos_token_id": 2, "do_sample": True, "temperature": 1.0, "top_p": 0.95}
    saved = {name: value for name, value in released.items() if name != "temperature"}
    for left, right in ((released, saved), (saved, released)):
        result = compare_generation_config(left, right)
        assert result.problems == []
        assert any("temperature" in note for note in result.notes)
    lost = compare_generation_config({**released, "top_k": 50, "temperature": 0.9}, saved)
    assert {problem.place.field for problem in lost.problems} == {"temperature", "top_k"}


def test_other_spellings_beside_code_of_its_own_decide_nothing() -> None:
    """DeepSeek-V3 names code of its own, which reads rope_theta; transformers 5 writes rope_parameters."""
    own = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    rope = {"rope_type": "default", "rope_theta": LLAMA["rope_theta"]}
    renamed = {name: value for name, value in own.items() if name != "rope_theta"} | {"rope_parameters": rope}
    result = compare_config(own, renamed)
    assert [(p.code, p.outcome) for p in result.problems] == [("field-unknown", Outcome.INCONCLUSIVE)]
    assert result.problems[0].next_step
    assert _fields(own, own) == {}
    assert _fields(own, {**own, "rms_norm_eps": 0.1}) == {"rms_norm_eps": Outcome.FAIL}
    assert _fields(own, LLAMA) == {"auto_map": Outcome.FAIL}
    assert _fields(LLAMA, own) == {"auto_map": Outcome.INCONCLUSIVE}
