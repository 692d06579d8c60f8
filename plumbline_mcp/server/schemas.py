"""The JSON schemas that a tool list carries: every conversation pays for each byte of them.

Inputs are told in full. Answers are told briefly: every field is always there and no other is, so neither
``required`` nor defaults are told, what may be absent has a second type ``null``, and a model that is used
once stands where it is used. `outline` tells the first level of an answer that another tool tells in full.
"""

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]
_LEFT_OUT = ("title", "default", "required")


def input_schema(model: type[BaseModel]) -> Schema:
    """The arguments of a tool, without the titles and empty defaults that pydantic makes."""
    return _untitled(model.model_json_schema(by_alias=True))


def answer_schema(model: type[BaseModel]) -> Schema:
    """The answer of a tool: the type of every field, at every level."""
    whole = model.model_json_schema(mode="validation")
    shared: Schema = whole.pop("$defs", {})
    counts = {name: str((whole, shared)).count(f"'#/$defs/{name}'") for name in shared}
    once = {name: shared[name] for name, count in counts.items() if count == 1}
    brief = _brief(whole, once)
    brief.pop("description", None)  # the tool has its own
    kept = {name: _brief(part, once) for name, part in shared.items() if name not in once}
    return {**brief, **({"$defs": kept} if kept else {})}


def outline(schema: Schema, fields: tuple[str, ...]) -> Schema:
    """These fields of an answer with their types, without what is inside them; all without ``fields``."""
    if not fields:
        return schema
    shared = schema.get("$defs", {})
    return {
        "type": "object",
        "properties": {name: _shallow(schema["properties"][name], shared) for name in fields},
    }


def _shallow(field: Schema, shared: Schema) -> Schema:
    if "$ref" in field:
        field = shared[field["$ref"].rpartition("/")[2]]
    return {key: value for key, value in field.items() if key in ("type", "enum", "anyOf")}


def _untitled(schema: Schema) -> Schema:
    kept = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if (key, value) in (("format", "path"), ("default", None)):
            continue
        kept[key] = _within(key, value, _untitled)
    return kept


def _brief(schema: Schema, once: Schema) -> Schema:
    if "$ref" in schema and (name := schema["$ref"].rpartition("/")[2]) in once:
        schema = {**once[name], **{key: value for key, value in schema.items() if key != "$ref"}}
    if "anyOf" in schema and all(set(kind) == {"type"} for kind in schema["anyOf"]):
        schema = {"type": [kind["type"] for kind in schema["anyOf"]], **schema}
        del schema["anyOf"]
    return {
        key: _within(key, value, lambda part: _brief(part, once))
        for key, value in schema.items()
        if key not in _LEFT_OUT and (key, value) != ("additionalProperties", False)
    }


def _within(key: str, value: Any, change: Any) -> Any:
    """A value of a schema with the schemas in it changed; the names of properties are no keywords."""
    if isinstance(value, dict):
        if key in {"properties", "$defs"}:
            return {name: change(part) for name, part in value.items()}
        return change(value)
    if isinstance(value, list):
        return [change(item) if isinstance(item, dict) else item for item in value]
    return value
