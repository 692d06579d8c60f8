"""Options are generated from a check's inputs: names, types, help, required fields, mappings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import typer
from pydantic import Field

from checks.check import Inputs
from plumbline_mcp.cli import check as check_verb
from plumbline_mcp.cli.inputs import given


class Sample(Inputs):
    model: Path = Field(description="folder of the release")
    template: Path | None = Field(None, description="a template instead of the release's [optional]")
    columns: dict[str, str] = Field({}, description="names of the columns")
    template_kwargs: dict[str, Any] = Field({}, description="arguments of the template")
    max_length: int | None = Field(None, description="longest row")
    packing: Literal["none", "greedy"] = Field("none", description="how rows are packed")
    supervise: Literal["all", "last"] = Field("all", description="which turns")
    strict: bool = Field(False, description="a switch")
    names: tuple[str, ...] = Field((), description="any number")


CHECK = SimpleNamespace(
    name="sample",
    title="Sample",
    question="Is [it] right?",
    reference="the official file",
    rule="exact",
    example="plumbline check sample --model M",
    inputs=Sample,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the generated command would ask the service for."""
    seen: dict[str, Any] = {}

    def run(name: str, inputs: dict[str, Any], *_: Any) -> int:
        seen.update(inputs)
        return 0

    monkeypatch.setattr(check_verb, "_run", run)
    return seen


def call(*arguments: str) -> Any:
    return check_verb._command(CHECK).main(list(arguments), standalone_mode=False)


def test_only_what_was_given_is_passed_on(asked: dict[str, Any]) -> None:
    call("--model", "M")
    assert asked == {"model": "M"}
    assert Sample.model_validate(asked).packing == "none"


def test_every_kind_of_field_has_an_option(asked: dict[str, Any]) -> None:
    call(
        *("--model", "M", "--template", "t.jinja", "--columns", "prompt=question,answer=reply"),
        *("--template-kwargs", '{"enable_thinking": false, "n": [1]}', "--max-length", "128"),
        *("--packing", "greedy", "--supervise", "last", "--strict", "--names", "a", "--names", "b"),
    )
    read = Sample.model_validate(asked)
    assert read.columns == {"prompt": "question", "answer": "reply"}
    assert read.template_kwargs == {"enable_thinking": False, "n": [1]}
    assert (read.max_length, read.packing, read.supervise, read.strict) == (128, "greedy", "last", True)
    assert read.names == ("a", "b")
    assert read.template == Path("t.jinja")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("enable_thinking=false", {"enable_thinking": False}),
        ("a=1,b=x,c=1.5,d=null", {"a": 1, "b": "x", "c": 1.5, "d": None}),
        ("date=2026-11-30", {"date": "2026-11-30"}),
        ("a=b=c", {"a": "b=c"}),
    ],
)
def test_values_of_a_free_mapping_are_json_where_they_can_be(text: str, parsed: dict[str, Any]) -> None:
    assert given(Sample, {"template_kwargs": text}) == {"template_kwargs": parsed}


def test_values_of_a_text_mapping_stay_text() -> None:
    assert given(Sample, {"columns": "a=1,b=true"}) == {"columns": {"a": "1", "b": "true"}}


@pytest.mark.parametrize("text", ["", "nothing", "=x", '{"a": 1', '{"a"}'])
def test_what_is_no_mapping_is_refused_with_the_option_named(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        given(Sample, {"columns": text})
    assert "--columns" in refused.value.format_message()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model", "M", "--packing", "most"],
        ["--model", "M", "--max-length", "many"],
        ["--model", "M", "--tolerance", "1"],
    ],
    ids=["required field missing", "no such choice", "no number", "no such option"],
)
def test_typer_refuses_what_the_model_would_refuse(arguments: list[str], asked: dict[str, Any]) -> None:
    with pytest.raises(typer.TyperException):
        call(*arguments)
    assert asked == {}


def test_help_shows_question_reference_rule_example_and_descriptions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call("--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in (
        "Is [it] right?",
        "Reference: the official file",
        "Rule: exact",
        "Example: plumbline check sample --model M",
        "folder of the release [required]",
        "the release's [optional]",
        "<none|greedy>",
        "which turns [default: all]",
    ):
        assert text in shown
