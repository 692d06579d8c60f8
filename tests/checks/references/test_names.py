"""Name maps: the closed set of operations, read strictly."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from checks.errors import BadInput, Inconclusive
from checks.references.names import NamesFile, Rule, arrange, compiled, kept_in, load_names
from checks.references.packs import load_pack

EXPERTS: dict[str, Any] = {
    "from": ["l.{layer}.e.{expert}.gate", "l.{layer}.e.{expert}.up"],
    "to": ["l.{layer}.gate_up"],
    "operations": [{"op": "stack", "over": "expert"}, {"op": "concat", "axis": 1}],
}


def names(*rules: dict[str, Any], **fields: Any) -> NamesFile:
    return NamesFile.model_validate({"format": 1, "rule": rules} | fields)


def tensors(*found: str) -> dict[str, None]:
    return dict.fromkeys(found)


def test_what_no_rule_fits_keeps_its_name() -> None:
    made = arrange(names(EXPERTS), tensors("norm"), "any", "")
    assert made["norm"].sources == (("norm",),)


def test_a_stack_is_in_the_order_of_numbers_not_of_text() -> None:
    found = tensors(*(f"l.0.e.{expert}.{kind}" for expert in (10, 9, *range(9)) for kind in ("up", "gate")))
    made = arrange(names(EXPERTS), found, "any", "")
    assert list(made) == ["l.0.gate_up"]
    assert made["l.0.gate_up"].sources[0] == tuple(f"l.0.e.{expert}.gate" for expert in range(11))
    assert made["l.0.gate_up"].sources[1][10] == "l.0.e.10.up"


def test_a_missing_expert_is_inconclusive() -> None:
    found = tensors("l.0.e.0.gate", "l.0.e.0.up", "l.0.e.1.gate")
    with pytest.raises(Inconclusive, match=r"\.up.*expert 1"):
        arrange(names(EXPERTS), found, "any", "")


def test_two_tensors_of_one_name_are_inconclusive() -> None:
    rename = {"from": ["a.{n}.w"], "to": ["b.{n}.w"]}
    with pytest.raises(Inconclusive, match="more than one"):
        arrange(names(rename), tensors("a.1.w", "b.1.w"), "any", "")


def test_the_first_rule_that_fits_counts() -> None:
    rules = ({"from": ["a.{rest*}"], "to": ["b.{rest*}"]}, {"from": ["a.x"], "to": ["c.x"]})
    assert list(arrange(names(*rules), tensors("a.x"), "any", "")) == ["b.x"]


def test_a_rule_without_operations_renames_and_the_rules_below_read_the_new_name() -> None:
    prefix = {"from": ["l.{rest*}", "top"], "to": ["model.l.{rest*}", "model.top"]}
    experts = EXPERTS | {"from": [f"model.{p}" for p in EXPERTS["from"]], "to": ["model.l.{layer}.gate_up"]}
    found = tensors("l.0.e.0.gate", "l.0.e.0.up", "top", "l.0.norm")
    made = arrange(names(prefix, experts), found, "any", "")
    assert {name: entry.tensors for name, entry in made.items()} == {
        "model.top": ("top",),
        "model.l.0.norm": ("l.0.norm",),
        "model.l.0.gate_up": ("l.0.e.0.gate", "l.0.e.0.up"),
    }


def test_tensors_are_joined_in_the_order_of_their_numbers() -> None:
    shards = {"from": ["t.{n}"], "to": ["t"], "operations": [{"op": "concat", "over": "n", "axis": 0}]}
    made = arrange(names(shards), tensors("t.10", "t.9", *(f"t.{n}" for n in range(9))), "any", "")
    assert made["t"].sources == (tuple(f"t.{n}" for n in range(11)),)
    with pytest.raises(Inconclusive, match="n 1"):
        arrange(names(shards), tensors("t.0", "t.2"), "any", "")


def test_rules_are_of_model_types_and_versions() -> None:
    rule = EXPERTS | {"model_types": ["mixtral"], "versions": ">=5"}
    found = tensors("l.0.e.0.gate", "l.0.e.0.up")
    made = names(rule, distribution="transformers")
    assert set(arrange(made, found, "mixtral", "5.0.0")) == {"l.0.gate_up"}
    assert set(arrange(made, found, "mixtral", "4.57.6")) == set(found)
    assert set(arrange(made, found, "other", "")) == set(found)
    with pytest.raises(Inconclusive, match="version"):
        arrange(made, found, "mixtral", "")


def test_a_split_has_equal_parts_or_sizes() -> None:
    rule = {"from": ["qkv"], "to": ["q", "k", "v"], "operations": [{"op": "split", "axis": 0}]}
    made = arrange(names(rule), tensors("qkv"), "any", "")
    assert [(entry.name, entry.part, entry.parts) for entry in made.values()] == [
        ("q", 0, 3),
        ("k", 1, 3),
        ("v", 2, 3),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"from": ["a.{x}"], "to": ["b"]},
        {"from": ["a.{x}"], "to": ["b.{x}.{y}"]},
        {"from": ["a", "b"], "to": ["c"]},
        {"from": ["a"], "to": ["c"], "operations": [{"op": "concat"}]},
        {"from": ["a"], "to": ["c", "d"]},
        {"from": ["a"], "to": ["c"], "operations": [{"op": "eval"}]},
        {"from": ["a.{x}"], "to": ["c"], "operations": [{"op": "transpose"}, {"op": "stack", "over": "x"}]},
        {"from": ["a"], "to": ["c", "d"], "operations": [{"op": "split", "sizes": [[1]]}]},
        {"from": ["a.{x}", "b.{y}"], "to": ["c.{y}", "d.{x}"]},
        {"from": ["a.{x}"], "to": ["c"], "operations": [{"op": "stack"}]},
        {"from": ["a.{x}"], "to": ["c"], "operations": [{"op": "transpose", "over": "x"}]},
        {"from": ["a"], "to": ["c"], "operations": [{"op": "concat", "over": "x"}]},
        {"from": ["a.{x}.{x}"], "to": ["c.{x}"]},
        {"from": ["a.{x"], "to": ["c"]},
        {"from": ["{a*}{b*}{c*}"], "to": ["{a*}{b*}{c*}"]},
        {"from": ["a"], "to": ["c"], "tolerance": 1},
        {"from": ["a"], "to": ["c"], "versions": "new"},
    ],
)
def test_a_rule_that_says_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Rule.model_validate(wrong)


def test_a_pattern_is_no_regular_expression() -> None:
    assert compiled("a.b.{n}").fullmatch("a.b.12")
    assert not compiled("a.b.{n}").fullmatch("axb.12")
    assert not compiled("(a+)+").fullmatch("aaaa")


def test_what_is_kept_wider_depends_on_the_recipe() -> None:
    citation = {"document": "d", "version": "1"}
    kept = {"parameters": ["{m*}gate.weight"], "where": ["bfloat16"], "citation": citation}
    found = names(kept=[kept])
    assert kept_in(found, "any", "", "bfloat16")
    assert not kept_in(found, "any", "", "float32")


@pytest.mark.parametrize("pack", ["transformers", "trl"])
def test_the_built_in_packs_have_one_map(pack: str) -> None:
    found = load_names(load_pack(pack))
    assert found.distribution == "transformers"
    assert {"llama", "gpt_oss", "mixtral", "qwen3_moe", "deepseek_v3"} <= set(found.covers)
    assert all(rule.citation for rule in found.rule)


def test_a_map_of_another_pack_is_taken_whole(tmp_path: Path) -> None:
    (tmp_path / "pack.toml").write_text(
        'format = 1\nname = "own"\ntitle = "Own"\n[framework]\ndistributions = ["own"]\nmodule = "own"\n'
    )
    (tmp_path / "names.toml").write_text('format = 1\nsame_as = "nobody"\n')
    with pytest.raises(BadInput, match="nobody"):
        load_names(load_pack(str(tmp_path)))
    (tmp_path / "names.toml").write_text('format = 1\nsame_as = "transformers"\ncovers = ["llama"]\n')
    with pytest.raises(BadInput, match="same_as"):
        load_names(load_pack(str(tmp_path)))
