"""Writes a ``target.toml``: the given values, and every setting that the pack knows as a comment."""

import contextlib
import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from checks.errors import BadInput
from checks.references.packs import Pack, Setting, load_pack
from checks.verdict import Frozen
from plumbline_mcp.engines.images import Image, check_image
from plumbline_mcp.engines.requirements import read_requirements
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.target import Target, checked_target
from plumbline_mcp.temporaries import temporary_beside

_WIDTH = 100


class Given(Frozen):
    """What a target is written from. Paths may be relative to the current folder."""

    framework: str
    model: Path
    workload: Path
    template: Path | None = None
    commit: str | None = None
    python: Path | None = None
    requirements: Path | None = None
    hashes: bool = True
    image: str | None = None
    image_sha256: str = ""
    runtime: str | None = None
    image_python: str = "python3"
    recipe: dict[str, JsonValue] = {}


def write_target(path: Path, given: Given, *, force: bool = False) -> Target:
    """Check and write the file; nothing is written when a value does not fit. Raises `UsageError`.

    A file that is there is left as it is unless ``force`` is given.
    """
    path = path.expanduser().absolute()
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", "name another file, or give --force to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", "make it, or name another place")
    text = target_text(path, given)
    target = checked_target(path, text)
    temporary = temporary_beside(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        if force:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # fails where somebody wrote it meanwhile
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", "name another file, or give --force") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return target


def check_answer(name: str, text: str, image: str = "") -> None:
    """Raise `BadInput` or `UsageError` for a value of `Given` that does not fit by itself, in this folder.

    ``image`` is the file whose digest is asked for under the name ``image_sha256``.
    """
    place = Path(text).expanduser()
    if name == "framework":
        load_pack(text)
    elif name == "model" and not (place / "config.json").is_file():
        raise UsageError(f"{text} holds no config.json", "name the folder of a release as published")
    elif name in ("workload", "python") and not place.is_file():
        raise UsageError(f"there is no file {text}", "relative paths are relative to this folder")
    elif name == "requirements":
        read_requirements(place, hashed=False)
    elif name == "image":
        check_image(Image(name=text, sha256="0" * 64 if is_file_image(text) else ""))
    elif name == "image_sha256":
        check_image(Image(name=image, sha256=text))


def is_file_image(name: str) -> bool:
    """Whether an image is named by its file, whose digest has to be named too."""
    return name.endswith((".sif", ".sqsh"))


def target_text(path: Path, given: Given) -> str:
    """The text of the file."""
    return "\n".join(_lines(path, given)) + "\n"


def _lines(path: Path, given: Given) -> Iterator[str]:
    yield "# What plumbline scans: plumbline onboard " + path.name
    yield "# Relative paths are relative to this file. docs/target.md describes every key."
    yield "format = 1"
    yield f"framework = {_framework(path, given.framework)}"
    yield f"model = {_path(path, given.model)}"
    yield f"workload = {_path(path, given.workload)}"
    if given.template is not None:
        yield f"template = {_path(path, given.template)}"
    if given.commit is not None:
        yield f"commit = {toml_value(given.commit)}"
    yield ""
    yield from _environment(path, given)
    yield ""
    yield "# Settings of the recipe; each goes to every job that knows it. Remove one # to give a setting."
    yield "[recipe]"
    for name, value in given.recipe.items():
        yield f"{_key(name)} = {toml_value(value)}"
    with contextlib.suppress(BadInput):  # the check of the text says what is wrong with the pack
        yield from _further(load_pack(given.framework), set(given.recipe))


def _environment(path: Path, given: Given) -> Iterator[str]:
    if given.image is not None:
        yield "[environment.image]"
        named = _path(path, Path(given.image)) if is_file_image(given.image) else toml_value(given.image)
        yield f"name = {named}"
        if given.image_sha256:
            yield f"sha256 = {toml_value(given.image_sha256)}"
        if given.runtime is not None:
            yield f"runtime = {toml_value(given.runtime)}"
        yield f"python = {toml_value(given.image_python)}"
        return
    yield "[environment]"
    if given.python is not None:
        yield f"python = {_path(path, given.python)}"
    elif given.requirements is not None:
        yield f"requirements = {_path(path, given.requirements)}"
        if not given.hashes:
            yield "hashes = false # wheels are not compared with digests"
    else:
        yield "pack = true # the connection pack's own pinned environment"


def _further(pack: Pack, named: set[str]) -> Iterator[str]:
    """Each other setting of the pack as a comment: name, default and what it is."""
    told: set[str] = set(named)
    for setting in pack.settings.setting:
        if setting.status == "supported" and setting.name not in told:
            told.add(setting.name)
            yield ""
            yield from textwrap.wrap(
                setting.description, _WIDTH, initial_indent="## ", subsequent_indent="## "
            )
            yield f"# {_key(setting.name)} = {_default(setting)}"


def _default(setting: Setting) -> str:
    """A value that TOML reads; where there is no default one that the check of a target refuses by name."""
    if setting.default is not None:
        return toml_value(setting.default)
    if setting.choices:
        return f"{toml_value(setting.choices[0])}  # or {', '.join(setting.choices[1:])}; none by default"
    kept = {"list": "[]", "object": "{}"}
    return f"{kept.get(setting.type, toml_value(f'<{setting.type}>'))}  # none by default"


def _framework(path: Path, named: str) -> str:
    folder = Path(named).expanduser()
    return _path(path, folder) if (folder / "pack.toml").is_file() else toml_value(named)


def _path(path: Path, named: Path) -> str:
    """As the file says it: relative where it lies below the file's folder."""
    absolute = named.expanduser().absolute()
    inside = absolute.is_relative_to(path.parent)
    return toml_value(str(absolute.relative_to(path.parent) if inside else absolute))


def _key(name: str) -> str:
    bare = name.replace("_", "").replace("-", "")
    return name if bare.isascii() and bare.isalnum() else json.dumps(name)


def toml_value(value: JsonValue) -> str:
    """A value as TOML spells it; a JSON string is a TOML basic string. Raises `UsageError` for null."""
    if value is None:
        raise UsageError("a setting is null, which TOML has no word for", "leave the setting out")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else str(value)
    return json.dumps(value, ensure_ascii=False)
