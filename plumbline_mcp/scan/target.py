"""``target.toml``: what a user scans. One file, read strictly; the fields are described in docs/target.md.

Relative paths are relative to the file's own folder.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from checks.check import Progress, silent
from checks.errors import BadInput
from checks.references.packs import BUILT_IN, Pack, built_in, load_pack
from checks.verdict import Frozen
from plumbline_mcp.engines.environments import build_in_worker, is_built, planned
from plumbline_mcp.engines.images import Image, check_image, interpreter
from plumbline_mcp.engines.requirements import read_requirements
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.scanning import Subject, check_recipe
from plumbline_mcp.scan.steps import ScanStep, steps_for

_MAX_BYTES = 256 * 1024
_Name = Annotated[str, Field(min_length=1)]


class TargetEnvironment(Frozen):
    """Where the jobs run: exactly one of an interpreter, a requirements list, an image or the pack's pins."""

    python: Path | None = Field(None, description="the framework's interpreter, e.g. venv/bin/python")
    requirements: Path | None = Field(None, description="pinned requirements; built once, beside our torch")
    hashes: bool = Field(True, description="every line of the requirements carries the hashes of its wheels")
    image: Image | None = Field(None, description="a container image, pinned by digest")
    pack: bool = Field(False, description="true builds the connection pack's own pinned environment")

    @model_validator(mode="after")
    def _one(self) -> "TargetEnvironment":
        named = [self.python is not None, self.requirements is not None, self.image is not None, self.pack]
        if sum(named) != 1:
            raise ValueError("name exactly one of python, requirements, image and pack = true")
        return self


class TargetFile(Frozen):
    """The file as it is written."""

    format: Literal[1] = Field(description="version of this format")
    framework: _Name = Field(description="a built-in connection pack, or the path of a pack folder")
    model: Path = Field(description="folder of the official release")
    workload: Path = Field(description="the conversations that training reads, JSONL or JSON")
    template: Path | None = Field(None, description="chat template, where it is not the release's own")
    commit: str | None = Field(None, description="the framework's commit or version under test")
    source: Path | None = Field(None, description="git checkout of the framework at that commit")
    lock: Path | None = Field(None, description="lock file whose versions have to be installed exactly")
    environment: TargetEnvironment
    steps: tuple[str, ...] = Field((), description="steps of the scan; every one by default")
    recipe: dict[str, JsonValue] = Field({}, description="settings, for every procedure that knows them")
    settings: dict[str, dict[str, JsonValue]] = Field({}, description="settings of one procedure alone")
    time_limit_s: float | None = Field(None, gt=0, allow_inf_nan=False, description="of each job")


class Target(Frozen):
    """A target that was read and checked: every path is there and every setting is known."""

    path: Path
    file: TargetFile
    framework: str
    steps: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """What relative paths are relative to."""
        return self.path.parent

    def place(self, path: Path) -> Path:
        """An absolute path. A link is left as it is: it is what makes a virtual environment."""
        return (self.folder / path.expanduser()).absolute()

    def files(self) -> dict[str, Path]:
        """What procedures and checks read."""
        named = {"model": self.file.model, "workload": self.file.workload, "template": self.file.template}
        return {name: self.place(path) for name, path in named.items() if path is not None}

    def scan_steps(self) -> tuple[ScanStep, ...]:
        """The steps of its scan."""
        return steps_for(load_pack(self.framework), self.steps)

    def subject(self, python: Path) -> Subject:
        """What is scanned, once there is an interpreter."""
        file = self.file
        image: dict[str, JsonValue] = {} if file.commit is None else {"commit": file.commit}
        paths = {"source": file.source, "lock": file.lock}
        image |= {name: str(self.place(path)) for name, path in paths.items() if path is not None}
        target = {"model": self.place(file.model).name, "target": self.path.name}
        if file.environment.image is not None:
            target["image"] = f"{file.environment.image.name} {file.environment.image.sha256}".strip()
        return Subject(
            framework=self.framework,
            python=python,
            files=self.files(),
            recipe=file.recipe,
            settings=file.settings,
            arguments={"image": image} if image else {},
            target=target,
            time_limit_s=file.time_limit_s,
        )


def load_target(path: Path) -> Target:
    """Read and check a target. Raises `UsageError` with file, key, value and the next step."""
    path = path.expanduser().absolute()
    return checked_target(path, _read(path))


def checked_target(path: Path, text: str) -> Target:
    """Check a target's text as if it lay at ``path`` (absolute). Raises `UsageError` like `load_target`."""
    file = _parsed(path, text)
    framework = _framework(path, file.framework)
    target = Target(path=path, file=file, framework=framework, steps=file.steps)
    try:
        pack = load_pack(framework)
        check_recipe(pack, target.subject(Path("python")), target.scan_steps())
    except (BadInput, UsageError) as error:
        raise UsageError(f"{path}: {error.message}", error.next_step) from error
    _check_paths(target)
    _check_environment(target, pack)
    return target


def _parsed(path: Path, text: str) -> TargetFile:
    try:
        return TargetFile.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is no valid TOML: {error}",
            "docs/target.md shows a whole file; plumbline init writes one",
        ) from error
    except ValidationError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "the file"
    said = first["msg"].removeprefix("Value error, ")
    met = "" if first["type"] == "missing" else f" (got {repr(first.get('input'))[:80]})"
    step = "docs/target.md describes every key"
    if first["type"] == "extra_forbidden":
        fields = _fields(first["loc"][:-1])
        said, step = "there is no such key", f"known here: {', '.join(fields)}" if fields else step
    return UsageError(f"{path}: {key}: {said}{met}", step)


def _fields(where: tuple[Any, ...]) -> list[str]:
    models: dict[tuple[Any, ...], type[Frozen]] = {
        (): TargetFile,
        ("environment",): TargetEnvironment,
        ("environment", "image"): Image,
    }
    model = models.get(tuple(where))
    return sorted(model.model_fields) if model else []


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the target {path} cannot be read: {error.strerror}", "plumbline init writes one"
        ) from error
    if len(raw) > _MAX_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_BYTES} bytes", "a target is one small file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}", "a target is a TOML file in UTF-8") from error


def _framework(path: Path, named: str) -> str:
    """A built-in pack's name, or a pack folder's absolute path."""
    if named in built_in():
        return named
    folder = (path.parent / Path(named).expanduser()).absolute()
    if (folder / "pack.toml").is_file():
        return str(folder)
    raise UsageError(
        f"{path}: framework: there is no connection pack {named!r}",
        f"built in: {', '.join(built_in())} ({BUILT_IN}); or name a folder that holds a pack.toml",
    )


def _check_paths(target: Target) -> None:
    for key in ("model", "workload", "template", "source", "lock"):
        path = getattr(target.file, key)
        if path is not None and not target.place(path).exists():
            raise UsageError(
                f"{target.path}: {key}: there is no {target.place(path)} (got {str(path)!r})",
                "relative paths are relative to the file",
            )
    model = target.place(target.file.model)
    if not (model / "config.json").is_file():
        raise UsageError(
            f"{target.path}: model: {model} holds no config.json", "name the folder of a release as published"
        )


def _check_environment(target: Target, pack: Pack) -> None:
    """Everything about the environment that can be known before it is built or started."""
    try:
        _environment_fits(target, pack)
    except UsageError as error:
        raise UsageError(f"{target.path}: environment: {error.message}", error.next_step) from error


def _environment_fits(target: Target, pack: Pack) -> None:
    wanted = target.file.environment
    if wanted.python is not None and not target.place(wanted.python).is_file():
        raise UsageError(f"there is no {target.place(wanted.python)}", "name a Python: venv/bin/python")
    if wanted.requirements is not None:
        read_requirements(target.place(wanted.requirements), hashed=wanted.hashes)
    if wanted.image is not None:
        check_image(_placed(target, wanted.image))
    if wanted.pack and not pack.about.environment.requirements:
        raise UsageError(f"pack {pack.name} pins no environment", "name python, requirements or an image")


def _placed(target: Target, image: Image) -> Image:
    """The image with its paths absolute."""
    name = str(target.place(Path(image.name))) if image.name.endswith((".sif", ".sqsh")) else image.name
    mounts = [mount.model_copy(update={"source": target.place(mount.source)}) for mount in image.mounts]
    return image.model_copy(update={"name": name, "mounts": tuple(mounts)})


def planned_python(target: Target, images: Path) -> tuple[Path, bool]:
    """The interpreter that `prepared_python` gives, and whether it is there; nothing is built or started.

    Raises `UsageError`, and `NotEvaluated` where no runtime starts the image here.
    """
    wanted = target.file.environment
    if wanted.python is not None:
        return target.place(wanted.python), True
    if wanted.image is not None:
        return interpreter(_placed(target, wanted.image), tuple(target.files().values()), images), True
    if wanted.requirements is not None:
        listed = read_requirements(target.place(wanted.requirements), hashed=wanted.hashes)
        python = planned(listed.requirements, hashes=listed.hashes if wanted.hashes else None).python
    else:
        pins = load_pack(target.framework).about.environment
        python = planned(pins.requirements, without_dependencies=pins.without_dependencies).python
    return python, is_built(python)


async def prepared_python(target: Target, images: Path, progress: Progress = silent) -> Path:
    """The interpreter that the target's jobs start with: named, built, or the image's.

    ``images`` is the folder for the programs that start images. Raises `BuildError`, and `NotEvaluated`
    where no runtime starts the image here.
    """
    wanted = target.file.environment
    if wanted.python is not None:
        return target.place(wanted.python)
    if wanted.image is not None:
        progress(0, None, "asking the container runtime")
        return interpreter(_placed(target, wanted.image), tuple(target.files().values()), images)
    if wanted.requirements is not None:
        listed = read_requirements(target.place(wanted.requirements), hashed=wanted.hashes)
        hashes = listed.hashes if wanted.hashes else None
        made = await build_in_worker(listed.requirements, hashes=hashes, progress=progress)
        return made.python
    pins = load_pack(target.framework).about.environment
    made = await build_in_worker(
        pins.requirements, without_dependencies=pins.without_dependencies, progress=progress
    )
    return made.python
