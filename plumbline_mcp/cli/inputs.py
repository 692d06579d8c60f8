"""A check's pydantic ``inputs`` as command-line options: no list of them is kept by hand."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo


def parameters(model: type[BaseModel]) -> list[inspect.Parameter]:
    """One keyword parameter an input field, annotated for typer: required ones first."""
    made = [_parameter(name, field) for name, field in model.model_fields.items()]
    return sorted(made, key=lambda parameter: parameter.default is not inspect.Parameter.empty)


def given(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that were given, mappings parsed. Raises `typer.BadParameter`."""
    found = {}
    for name, field in model.model_fields.items():
        value = values.get(name)
        if value is None or value == []:
            continue
        found[name] = _mapping(name, field, value) if _is_mapping(field) else value
    return found


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    required = field.is_required()
    kind, metavar = _kind(field)
    option = typer.Option(
        f"--{name.replace('_', '-')}" + (f"/--no-{name.replace('_', '-')}" if kind is bool else ""),
        help=f"{field.description or ''}{_default(field)}",
        metavar=metavar,
        show_default=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind if required else kind | None, option],
        default=inspect.Parameter.empty if required else None,
    )


def _kind(field: FieldInfo) -> tuple[Any, str | None]:
    """The type typer converts to, and its metavar."""
    annotation = _without_none(field.annotation)
    origin = get_origin(annotation)
    if annotation in (int, float):
        return annotation, "N"
    if annotation is bool or origin is Literal:
        return annotation, None
    if annotation is Path:
        return str, "PATH"  # the service resolves paths and run ids
    if origin in (list, tuple, set, frozenset):
        return list[str], "TEXT"
    return str, "JSON|K=V,..." if _is_mapping(field) else "TEXT"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        rest = [kind for kind in get_args(annotation) if kind is not type(None)]
        return rest[0]
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_mapping(field: FieldInfo) -> bool:
    annotation = _without_none(field.annotation)
    return (get_origin(annotation) or annotation) in (dict, Mapping)


def _mapping(name: str, field: FieldInfo, text: str) -> dict[str, Any]:
    """``{"a": 1}`` or ``a=1,b=x``; a value after ``=`` is JSON where it can be, else text."""
    option = f"--{name.replace('_', '-')}"
    if text.lstrip().startswith("{"):
        try:
            parsed = json.loads(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not valid JSON: {error}", param_hint=option) from error
        return dict(parsed)
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not pairs or any(not sign or not key.strip() for key, sign, _ in pairs):
        raise typer.BadParameter(f"{text!r} is neither a JSON object nor key=value,...", param_hint=option)
    texts = get_args(_without_none(field.annotation))[1:] == (str,)
    return {key.strip(): value if texts else scalar(value) for key, _, value in pairs}


def scalar(text: str) -> Any:
    """A value as JSON where it can be, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """``["name=value", ...]`` of ``--set``, values as JSON where they can be. Raises `typer.BadParameter`."""
    settings = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        settings[name.strip()] = scalar(value)
    return settings


def _default(field: FieldInfo) -> str:
    """What typer would show, had it the default: only the model knows it."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    return "" if value is None or value in ({}, (), [], False) else f" [default: {value}]"
