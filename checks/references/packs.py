"""Connection packs: how a framework is found, launched and configured.

A pack is a folder with ``pack.toml``, ``settings.toml`` and the bindings that run inside the job. It holds
no bound and no skip list. It is data that a user or an agent may write, so it is read strictly: an unknown
field is refused.
"""

import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field, JsonValue, ValidationError

import checks
from checks.errors import BadInput
from checks.records.runs import file_evidence
from checks.verdict import Evidence, Frozen

BUILT_IN = Path(checks.__file__).parent.parent / "templates" / "frameworks"

_MAX_FILE = 2**20
_MAX_FILES = 200
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
_SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+\.py$")]


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


_Pattern = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_compiled)]


class Citation(Frozen):
    """Where the framework says so."""

    document: str = Field(min_length=1)
    version: str = Field(min_length=1)

    def __str__(self) -> str:
        return f"{self.document} ({self.version})"


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ValueError(f"{value!r} is no version specifier") from error
    return value


Specifier = Annotated[str, AfterValidator(_specifier)]
"""Versions of a distribution as PEP 440 names them; empty: every one."""


class Framework(Frozen):
    """How a framework is recognised in an environment."""

    distributions: tuple[str, ...] = Field(
        min_length=1, description="names on the package index; the first carries the version"
    )
    extras: tuple[str, ...] = Field((), description="extras of the first distribution that a job uses")
    module: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="import name of its code")
    repository: str = ""


class EnvironmentSpec(Frozen):
    """What a ready environment holds beside torch: pinned requirements."""

    requirements: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()


class ProcedureBinding(Frozen):
    """The file of the pack that a procedure runs inside the job."""

    binding: _SourceName


class LaunchSpec(Frozen):
    """How the framework's ranks are launched: torchrun starts one process a rank, and none for one rank."""

    kind: Literal["torchrun"] = "torchrun"


class PackFile(Frozen):
    """``pack.toml``."""

    format: Literal[1]
    name: _Name
    title: str
    framework: Framework
    environment: EnvironmentSpec = EnvironmentSpec()
    launch: LaunchSpec = LaunchSpec()
    shares: dict[_Name, tuple[_SourceName, ...]] = Field(
        {}, description="files of built-in packs that the bindings import, by pack"
    )
    procedures: dict[_Name, ProcedureBinding] = {}


class Setting(Frozen):
    """A setting that the framework documents, and what it documents about it."""

    name: _Name
    procedures: tuple[_Name, ...] = Field(min_length=1)
    status: Literal["supported", "refused"]
    type: Literal["int", "float", "bool", "str", "list", "object"]
    default: JsonValue = None
    choices: tuple[str, ...] = ()
    minimum: int | float | None = None
    description: str
    citation: Citation


class DeclaredExport(Frozen):
    """An export format that the framework documents where it differs from the release's."""

    release_format: Literal["mxfp4", "fp8", "fp4"]
    exported_as: Literal["bfloat16", "float16", "float32"]
    names: dict[str, str] = Field({}, description="suffix of the release's name to suffix of the export's")
    transposed: tuple[str, ...] = Field((), description="suffixes whose last two axes are swapped")
    description: str
    citation: Citation


class Decay(Frozen):
    """Which parameters the framework documents that it does not decay; it decays every other one."""

    excluded: tuple[_Pattern, ...] = Field(
        min_length=1, description="regular expressions, searched in the lower-cased parameter name"
    )
    excluded_modules: tuple[str, ...] = Field((), description="classes whose own parameters are not decayed")
    citation: Citation


class Refusal(Frozen):
    """Settings that the framework documents as unsupported: it has to refuse them before it trains.

    They are launched over the defaults of the dry run; ``says`` is what the framework then says last.
    """

    name: _Name
    settings: dict[_Name, JsonValue] = Field(min_length=1)
    says: str = Field(min_length=8, description="the last line it writes, which may hold *")
    versions: Specifier = Field("", description="PEP 440 specifier of the pack's first distribution")
    description: str
    citation: Citation


class SettingsFile(Frozen):
    """``settings.toml``."""

    setting: tuple[Setting, ...] = ()
    declared_export: tuple[DeclaredExport, ...] = ()
    decay: tuple[Decay, ...] = ()
    refusal: tuple[Refusal, ...] = Field((), max_length=20)


@dataclass(frozen=True)
class Pack:
    """A validated pack."""

    folder: Path
    about: PackFile
    settings: SettingsFile
    digest: str

    @property
    def name(self) -> str:
        """The pack's own name."""
        return self.about.name

    def is_of(self, distribution: str) -> bool:
        """Whether the pack's framework is that distribution, whatever the pack is called."""
        names = {canonicalize_name(name) for name in self.about.framework.distributions}
        return canonicalize_name(distribution) in names | {canonicalize_name(self.about.framework.module)}

    def procedure_settings(self, procedure: str) -> dict[str, Setting]:
        """The settings that a procedure knows, by name."""
        return {setting.name: setting for setting in self.settings.setting if procedure in setting.procedures}

    def decays(self) -> tuple[Decay, ...]:
        """Which parameters the framework documents that it does not decay."""
        return self.settings.decay

    def sources(self) -> dict[str, Path]:
        """Every file that a job of the pack is given, those of other packs too: name to where it lies."""
        return _sources(self.folder, self.about)

    def refusals(self) -> tuple[Refusal, ...]:
        """Settings that the framework documents as unsupported."""
        return self.settings.refusal

    def declared_exports(self) -> tuple[DeclaredExport, ...]:
        """Export formats that the framework documents."""
        return self.settings.declared_export


def built_in() -> list[str]:
    """Names of the packs that ship with the product."""
    return sorted(path.parent.name for path in BUILT_IN.glob("*/pack.toml"))


def load_pack(framework: str) -> Pack:
    """Read the pack of that name, or the pack folder at that path. Raises `BadInput`."""
    folder = BUILT_IN / framework if re.fullmatch(r"[a-z0-9][a-z0-9_-]*", framework) else Path(framework)
    if not (folder / "pack.toml").is_file() and (Path(framework) / "pack.toml").is_file():
        folder = Path(framework)
    if not (folder / "pack.toml").is_file():
        raise BadInput(
            f"no connection pack {framework!r}",
            f"built in: {', '.join(built_in())}; or name a folder that holds a pack.toml",
        )
    about = read_toml(folder / "pack.toml", PackFile)
    settings = SettingsFile()
    if (folder / "settings.toml").is_file():
        settings = read_toml(folder / "settings.toml", SettingsFile)
    for procedure, entry in about.procedures.items():
        if not (folder / entry.binding).is_file():
            raise BadInput(f"{folder}: procedure {procedure} names {entry.binding}, which is not in the pack")
    return Pack(folder.absolute(), about, settings, _digest(_sources(folder.absolute(), about)))


def _sources(folder: Path, about: PackFile) -> dict[str, Path]:
    """The pack's own files and those it shares. Raises `BadInput` for a name not there or twice there."""
    found = {name: folder / name for name in pack_files(folder)}
    for pack, names in about.shares.items():
        for name in names:
            path = BUILT_IN / pack / name
            if name in found or not path.is_file():
                why = "which it has itself" if name in found else "which is not there"
                raise BadInput(f"{folder}: shares names {name} of pack {pack}, {why}")
            found[name] = path
    return dict(sorted(found.items()))


def pack_files(folder: Path) -> list[str]:
    """Relative names of a pack's files, sorted; byte code is none of them. Raises `BadInput` for links."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in files:
            path = Path(place, name)
            if path.is_symlink():
                raise BadInput(f"{path} is a link; a pack holds plain files only", "copy the file into it")
            found.append(str(PurePosixPath(path.relative_to(folder))))
        if len(found) > _MAX_FILES:
            raise BadInput(f"{folder} holds more than {_MAX_FILES} files", "a pack is a few small files")
    return sorted(found)


def pack_evidence(pack: Pack) -> list[Evidence]:
    """The declarations of a pack as evidence."""
    names = (name for name in ("pack.toml", "settings.toml", "names.toml") if (pack.folder / name).is_file())
    return [file_evidence(pack.folder / name, "connection pack") for name in names]


Model = TypeVar("Model", bound=Frozen)


def read_toml(path: Path, model: type[Model]) -> Model:
    """A file of a pack, validated strictly. Raises `BadInput` with the field and the value met."""
    try:
        if path.stat().st_size > _MAX_FILE:
            raise BadInput(f"{path} is larger than {_MAX_FILE} bytes")
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return model.model_validate(raw)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is no valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(
            f"{path}: {where}: {first['msg']}", "the built-in pack transformers shows the format"
        ) from error


def _digest(sources: dict[str, Path]) -> str:
    entries = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sources.items()}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
