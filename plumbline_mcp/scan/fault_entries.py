"""Fault entries: data that says what to plant into a scan and where which check has to find it.

An entry plays the scan's own steps (`plumbline_mcp.scan.steps`): ``checks`` says which, ``recipe`` with which
settings. A corpus is a folder with ``entries/<id>.toml``, ``plants/*.py`` (hooks that a job imports, and
scripts that edit files) and ``jobs/*.py`` (whole jobs of released faults, in an environment that the entry
pins).
"""

import difflib
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, ValidationError, model_validator

import checks
from checks.errors import BadInput
from checks.verdict import Frozen, Outcome, Place
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.example_spec import ReleaseSpec
from plumbline_mcp.scan.steps import DRY_RUN, step_names


def _known_step(name: str) -> str:
    if name not in step_names():
        raise ValueError(f"a scan has no step {name!r}; it has: {', '.join(step_names())}")
    return name


StepName = Annotated[str, AfterValidator(_known_step)]
"""A check that a scan runs, or ``dry_run``."""

_MAX_ENTRY = 64 * 1024
_FileName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*\.py$")]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]


class Expected(Frozen):
    """One problem that has to be found: a text in ``place`` may hold ``*``."""

    check: StepName
    part: str
    code: str
    place: dict[str, str | int] = Field({}, description="fields of the place that have to be met")
    outcome: Outcome = Field(Outcome.FAIL, description="inconclusive where evidence is taken away")

    @model_validator(mode="after")
    def _known_fields(self) -> "Expected":
        unknown = set(self.place) - set(Place.model_fields)
        if unknown:
            raise ValueError(f"a place has no field {', '.join(sorted(unknown))}")
        return self

    def holds_at(self, place: Place) -> bool:
        """Whether a problem's place is the expected one."""
        return all(_equal(wanted, getattr(place, field)) for field, wanted in self.place.items())

    def __str__(self) -> str:
        where = ", ".join(f"{field} {value}" for field, value in self.place.items())
        return f"{self.check}: {self.part}/{self.code}" + (f" at {where}" if where else "")


def _equal(wanted: str | int, found: object) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and fnmatchcase(found, wanted)
    return found == wanted


class Plant(Frozen):
    """How a fault gets in; several ways may be combined."""

    hook: _FileName | None = Field(None, description="imported by the job before its framework runs")
    job: _FileName | None = Field(
        None, description="script that makes the export (and an adapter) in place of the pack's procedure"
    )
    rows_job: _FileName | None = Field(None, description="script that dumps rows in place of the procedure")
    edit_release: _FileName | None = Field(
        None, description="script run on the copy of the release that the jobs read; checks read the release"
    )
    edit_export: _FileName | None = Field(None, description="script run on a copy of the exported files")
    edit_environment: _FileName | None = Field(None, description="script run on a copy of the environment")
    arguments: tuple[str, ...] = Field((), description="further arguments of the script")
    requirements: tuple[str, ...] = Field((), description="environment pins, in place of the pack's")
    without_dependencies: tuple[str, ...] = Field((), description="installed last with --no-deps")
    settings: dict[str, dict[str, JsonValue]] = Field({}, description="procedure to its own settings")

    @property
    def scripts(self) -> tuple[str, ...]:
        """The files of ``plants/`` that it uses."""
        named = (self.hook, self.edit_release, self.edit_export, self.edit_environment)
        return tuple(name for name in named if name)


class FaultEntry(Frozen):
    """One fault, or one clean counterpart that must raise no alarm."""

    id: _Name
    title: str = Field(max_length=120)
    mechanism: str
    pattern: int = Field(ge=1, le=7)
    silent: bool = Field(description="whether training ends without an error")
    source: str = Field(description="where the mechanism was met or reported")
    clean: bool = False
    quick: bool = Field(False, description="played by the test suite")
    checks: tuple[StepName, ...] = Field((), description="steps of the scan; every one by default")
    framework: str = Field("transformers", pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    rows: int = Field(48, ge=1, le=1000, description="conversations of the embedded workload")
    release: ReleaseSpec = ReleaseSpec()
    plant: Plant = Plant()
    recipe: dict[str, JsonValue] = Field(
        {},
        description="settings for every procedure that knows them: ranks, optimizer, dtype, lora",
    )
    time_limit_s: float = Field(600.0, gt=0, le=3600, description="of each job")
    inputs: dict[StepName, dict[str, JsonValue]] = Field({}, description="further arguments of a check")
    refused: str = Field(
        "", description="the dry run has to fail with this sentence, which may hold *; nothing else is judged"
    )
    expect: tuple[Expected, ...] = ()
    also: tuple[Expected, ...] = Field((), description="what follows from the fault and may be seen too")

    @model_validator(mode="after")
    def _consistent(self) -> "FaultEntry":
        if self.clean == bool(self.expect or self.refused):
            raise ValueError("a fault names what has to be found, a clean entry names nothing")
        wanted = {expected.check for expected in self.expect} | ({DRY_RUN} if self.refused else set())
        missing = wanted - set(self.checks) if self.checks else set()
        if missing:
            raise ValueError(f"expects a finding of {', '.join(sorted(missing))}, which it does not run")
        return self


class Corpus(Frozen):
    """The entries of a folder and the folder itself."""

    folder: Path
    entries: tuple[FaultEntry, ...]

    def entry(self, entry_id: str) -> FaultEntry:
        """The entry of that id. Raises `UsageError` with the known ones."""
        found = next((entry for entry in self.entries if entry.id == entry_id), None)
        if found is None:
            known = [entry.id for entry in self.entries]
            near = difflib.get_close_matches(entry_id, known, n=3) or known[:3]
            raise UsageError(
                f"there is no fault entry {entry_id!r} in {self.folder}",
                f"the nearest are {', '.join(near)}; plumbline faults list shows all",
            )
        return found

    def plant_file(self, name: str) -> Path:
        """The file of a hook or an edit script."""
        return self.folder / "plants" / name

    def job_file(self, name: str) -> Path:
        """The file of a job script."""
        return self.folder / "jobs" / name


def default_corpus() -> Path:
    """The corpus of this checkout."""
    return Path(checks.__file__).parent.parent / "tests" / "faults"


def load_corpus(folder: Path | None = None) -> Corpus:
    """Read every entry. Raises `UsageError` (no corpus there) and `BadInput` (an entry that does not fit)."""
    folder = (folder or default_corpus()).absolute()
    paths = sorted((folder / "entries").glob("*.toml"))
    if not paths:
        raise UsageError(
            f"no fault entries in {folder / 'entries'}",
            "name a corpus with --corpus; the source checkout has one in tests/faults",
        )
    entries = tuple(_entry(path) for path in paths)
    corpus = Corpus(folder=folder, entries=entries)
    for path, entry in zip(paths, entries, strict=True):
        _check_files(corpus, path, entry)
    return corpus


def _entry(path: Path) -> FaultEntry:
    if path.stat().st_size > _MAX_ENTRY:
        raise BadInput(f"{path} is larger than {_MAX_ENTRY} bytes", "an entry is one small file")
    try:
        return FaultEntry.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "entry"
        raise BadInput(f"{path}: {where}: {first['msg']}", "CONTRIBUTING shows the fields") from error


def _check_files(corpus: Corpus, path: Path, entry: FaultEntry) -> None:
    if path.stem != entry.id:
        raise BadInput(f"{path}: its id is {entry.id!r}", "name the file after the id")
    plant = entry.plant
    for name in plant.scripts:
        if not corpus.plant_file(name).is_file():
            raise BadInput(f"{path}: there is no plants/{name}", "add the plant beside the entries")
    for job in (plant.job, plant.rows_job):
        if job and not corpus.job_file(job).is_file():
            raise BadInput(f"{path}: there is no jobs/{job}", "add the job beside the entries")
