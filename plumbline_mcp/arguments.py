"""Says why arguments cannot be used: the argument, the value met and what is accepted, in plain words."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from approvals.visible import visible_line

_TOLD = 3
_VALUE = 80
_ALIKE = 0.75
"""How alike a misspelled name and the one that is meant are: `tolerance` is no `trained` (0.63)."""
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def refusal(error: ValidationError, schema: dict[str, Any], of: str) -> str:
    """One sentence on the arguments that a model refused.

    ``schema`` is the JSON schema of the model, ``of`` the name of what takes the arguments.
    """
    problems = error.errors(include_url=False, include_context=False)
    names = list(dict.fromkeys(str(problem["loc"][0]) for problem in problems if problem["loc"]))
    told = [_told(name, problems, schema, of) for name in names[:_TOLD]]
    more = f"; and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return "; ".join(told) + more if told else f"the arguments of {of} do not fit: {problems[0]['msg']}"


def next_call(error: ValidationError, schema: dict[str, Any], of: str, given: dict[str, Any]) -> str:
    """The call with what was good, and in place of the rest what belongs there."""
    refused = {str(problem["loc"][0]) for problem in error.errors(include_url=False) if problem["loc"]}
    properties, required = schema.get("properties", {}), schema.get("required", ())
    meant = {_near(name, properties): value for name, value in given.items() if name not in properties}
    filled = []
    for name, about in properties.items():
        if name in given and name not in refused:
            filled.append(f"{name}={_shown(given[name])}")
        elif name in meant and name not in given:
            filled.append(f"{name}={_shown(meant[name])}")
        elif name in required or name in given:
            filled.append(f"{name}=<{accepted(about, schema)}>")
    return f"{of}({', '.join(filled)})"


def accepted(about: dict[str, Any], schema: dict[str, Any]) -> str:
    """What a property of a JSON schema takes, in words."""
    if "$ref" in about:
        return accepted(schema.get("$defs", {}).get(about["$ref"].rpartition("/")[2], {}), schema)
    if "anyOf" in about:
        kinds = [accepted(kind, schema) for kind in about["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in about or "const" in about:
        return _either(json.dumps(value) for value in about.get("enum", [about.get("const")]))
    words = _TYPES.get(str(about.get("type")), "a value")
    if about.get("type") == "array" and "items" in about:
        words += f" of {accepted(about['items'], schema)}"
    return words + _bounds(about)


def _bounds(about: dict[str, Any]) -> str:
    least, most = about.get("minimum"), about.get("maximum")
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f" of at least {least}"
    if most is not None:
        return f" of at most {most}"
    if "exclusiveMinimum" in about:
        return f" above {about['exclusiveMinimum']}"
    if about.get("minLength") or about.get("minItems"):
        return ", not empty"
    return f" of at most {about['maxLength']} characters" if "maxLength" in about else ""


def _told(name: str, problems: list[Any], schema: dict[str, Any], of: str) -> str:
    """What is wrong with one argument."""
    problem = next(one for one in problems if one["loc"] and str(one["loc"][0]) == name)
    properties = schema.get("properties", {})
    shown = visible_line(name, _VALUE)
    if problem["type"] == "extra_forbidden":
        near = _near(name, properties)
        takes = f"{near} may be meant" if near else f"it takes {', '.join(properties) or 'no argument'}"
        return f"{of} has no argument {shown} (met {_shown(problem['input'])}): {takes}"
    about = properties.get(name, {})
    if problem["type"] == "missing" and len(problem["loc"]) == 1:
        why = visible_line(str(about.get("description", "")), 200)
        return f"the argument {shown} is missing: {accepted(about, schema)}" + (f", {why}" if why else "")
    within = "".join(f"[{part!r}]" for part in problem["loc"][1:] if isinstance(part, int))
    return f"{shown}{within} is {_shown(problem['input'])}, and {shown} takes {accepted(about, schema)}"


def _near(name: str, properties: dict[str, Any]) -> str | None:
    """The argument that a misspelled name is likely to mean."""
    return next(iter(difflib.get_close_matches(name, properties, n=1, cutoff=_ALIKE)), None)


def _shown(value: Any) -> str:
    """A value as JSON, on one line, clipped."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return visible_line(text, _VALUE)


def _either(values: Iterable[str]) -> str:
    *first, last = values
    return f"{', '.join(first)} or {last}" if first else last
