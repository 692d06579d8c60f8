"""Schemas of tools: inputs in full, answers briefly, and nothing lost that a client goes by."""

import json
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from plumbline_mcp.server.schemas import answer_schema, input_schema, outline


class Leaf(BaseModel):
    """What is used once."""

    title: str
    required: int | None = None


class Shared(BaseModel):
    """What is used twice."""

    kind: Literal["a", "b"] = "a"


class Answer(BaseModel):
    """All of it."""

    leaves: tuple[Leaf, ...] = ()
    one: Shared = Field(Shared(), description="the first")
    other: Shared = Shared()
    numbers: dict[str, int] = {}
    inner: "Answer | None" = None


class Question(BaseModel):
    """Arguments."""

    path: str = Field(description="where it lies")
    count: int = Field(3, ge=1)
    name: str | None = None


def test_an_input_keeps_descriptions_bounds_and_what_is_required() -> None:
    schema = input_schema(Question)
    assert schema["required"] == ["path"]
    assert schema["properties"]["path"] == {"type": "string", "description": "where it lies"}
    assert schema["properties"]["count"] == {"type": "integer", "default": 3, "minimum": 1}
    assert schema["properties"]["name"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_an_answer_tells_the_type_of_every_field_once() -> None:
    fields = answer_schema(Answer)["$defs"]["Answer"]["properties"]  # it is in itself
    assert fields.keys() == Answer.model_fields.keys()
    leaf = fields["leaves"]["items"]["properties"]
    assert leaf == {"title": {"type": "string"}, "required": {"type": ["integer", "null"]}}
    assert fields["one"] == {"$ref": "#/$defs/Shared", "description": "the first"}
    assert fields["numbers"] == {"additionalProperties": {"type": "integer"}, "type": "object"}
    assert "default" not in json.dumps(answer_schema(Answer))


WRONG = [{"leaves": [{"title": 3}]}, {"one": {"kind": "c"}}, {"numbers": {"x": "y"}}, {"inner": 5}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_of_another_type_does_not_fit_the_brief_schema(wrong: dict[str, Any]) -> None:
    schema, good = answer_schema(Answer), Answer(inner=Answer()).model_dump(mode="json")
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, **wrong}, schema)


def test_an_outline_keeps_types_and_leaves_out_what_is_inside() -> None:
    class Flat(BaseModel):
        leaves: tuple[Leaf, ...] = ()
        one: Shared = Shared()
        other: Shared = Shared()

    told = outline(answer_schema(Flat), ("leaves", "one"))
    assert told == {"type": "object", "properties": {"leaves": {"type": "array"}, "one": {"type": "object"}}}
    assert outline(answer_schema(Flat), ()) == answer_schema(Flat)
