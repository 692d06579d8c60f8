"""From a launch to a run folder that can be started: the job, its hooks and the exact text that runs."""

import difflib
import hashlib
import os
import shlex
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import jinja2
from pydantic import Field, JsonValue

import checks
from checks.records.runs import Job, LaunchedRefusal
from checks.references.packs import BUILT_IN, Pack, Setting, load_pack
from checks.verdict import Frozen
from plumbline_mcp.engines import images, temporary_folder
from plumbline_mcp.engines.procedures import PROCEDURES, Procedure, load_procedure
from plumbline_mcp.errors import UsageError
from plumbline_mcp.version import system_version

RECORDER = Path(checks.__file__).parent.parent / "templates" / "recorder"

_PASSED = ("LD_LIBRARY_PATH", "OMP_NUM_THREADS")
"""The only variables of ours that a job sees: what an interpreter may need to start, and how many threads."""


Confinement = Literal["auto", "landlock", "bubblewrap", "uid", "none"]


class Launch(Frozen):
    """What to run. Paths may be relative to the current folder."""

    framework: str = Field(description="name of a built-in pack, or path of a pack folder")
    procedure: str = Field(description="rows, export")
    interpreter: Path = Field(description="the job's Python, with the framework installed")
    inputs: dict[str, Path] = Field(description="model, workload, template")
    settings: dict[str, JsonValue] = Field({}, description="values of the pack's settings")
    plants: tuple[Path, ...] = Field((), description="Python files that plant a fault in memory")
    target: dict[str, str] = {}
    confinement: Confinement = Field("auto", description="what has to hold the job; auto: the first that can")
    disk_bytes: int = Field(64 * 2**30, ge=0, description="what its run folder may take; 0: no limit")
    log_bytes: int = Field(16 * 2**20, ge=1024, description="kept of each stream of a rank: head and tail")
    time_limit_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="by default the procedure's own"
    )


class Prepared(Frozen):
    """A launch whose every value was checked; nothing is on disk yet."""

    launch: Launch
    sources: dict[str, Path]
    pack_digest: str
    script: Path
    job: Job


def prepare(launch: Launch, run_id: str, *, built: bool = True) -> Prepared:
    """Check every value of a launch. Raises `UsageError` and `BadInput`; writes nothing.

    ``built=False``: the interpreter is that of an environment that is not built yet.
    """
    pack, procedure = load_pack(launch.framework), load_procedure(launch.procedure)
    if launch.procedure not in pack.about.procedures:
        known = ", ".join(sorted(pack.about.procedures)) or "none"
        raise UsageError(f"pack {pack.name} has no procedure {launch.procedure!r}", f"it has: {known}")
    interpreter = launch.interpreter.expanduser().absolute()  # never resolved: a link is what makes a venv
    if built and not (interpreter.is_file() and os.access(interpreter, os.X_OK)):
        raise UsageError(f"{interpreter} is no interpreter that can be started", "name a Python")
    for path in launch.plants:
        if not path.is_file():
            raise UsageError(f"there is no plant {path}", "name a Python file")
    plants = tuple(f"hooks/plants/{number:02d}_{path.name}" for number, path in enumerate(launch.plants))
    settings = checked_settings(pack, procedure.name, launch.settings)
    job = Job(
        run_id=run_id,
        procedure=procedure.name,
        binding=pack.about.procedures[procedure.name].binding,
        framework=pack.name,
        pack_folder="" if pack.folder.parent == BUILT_IN else str(pack.folder),
        target={**launch.target, "framework": pack.name, "module": pack.about.framework.module},
        settings=settings,
        inputs=_checked_inputs(procedure, launch.inputs),
        interpreter=str(interpreter),
        plants=plants,
        world_size=_world_size(settings),
        refusals=_refusals(pack) if procedure.refusals else (),
        disk_bytes=launch.disk_bytes,
        log_bytes=launch.log_bytes,
        time_limit_s=launch.time_limit_s or procedure.time_limit_s,
        system_version=str(system_version()),
    )
    return Prepared(
        launch=launch,
        sources=pack.sources(),
        pack_digest=pack.digest,
        script=PROCEDURES / procedure.script,
        job=job,
    )


def _refusals(pack: Pack) -> tuple[LaunchedRefusal, ...]:
    """What the pack cites as refused, over the defaults of its dry run."""
    dry_run = pack.about.procedures.get("dry_run")
    if dry_run is None:
        return ()
    usual = checked_settings(pack, "dry_run", {})
    return tuple(
        LaunchedRefusal(name=each.name, binding=dry_run.binding, settings={**usual, **each.settings})
        for each in pack.refusals()
    )


def _world_size(settings: dict[str, JsonValue]) -> int:
    """The setting ``ranks``; a procedure that has none is one process."""
    ranks = settings.get("ranks", 1)
    return ranks if isinstance(ranks, int) else 1


def _checked_inputs(procedure: Procedure, inputs: dict[str, Path]) -> dict[str, str]:
    missing = [name for name in procedure.inputs if name not in inputs]
    unknown = sorted(set(inputs) - {*procedure.inputs, *procedure.optional_inputs})
    if missing or unknown:
        what = f"needs {_options(missing)}" if missing else f"takes no {_options(unknown)}"
        known = _options([*procedure.inputs, *procedure.optional_inputs])
        raise UsageError(f"procedure {procedure.name} {what}", f"its inputs are: {known}")
    paths = {name: Path(path).expanduser().absolute() for name, path in inputs.items()}
    for name, path in paths.items():
        if not path.exists():
            raise UsageError(f"--{name}: there is no {path}", "name a file or folder that exists")
    return {name: str(path) for name, path in paths.items()}


def _options(names: list[str]) -> str:
    """Inputs as the command line names them."""
    return ", ".join(f"--{name}" for name in names)


def checked_settings(pack: Pack, procedure: str, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The given settings over the pack's defaults. Raises `UsageError` for what the pack does not support."""
    known = pack.procedure_settings(procedure)
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                f"pack {pack.name} has no setting {name!r} for {procedure}", setting_hint(name, known)
            )
        _check_value(known[name], value)
    defaults = {name: setting.default for name, setting in known.items() if setting.default is not None}
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}


def setting_hint(name: str, known: Collection[str]) -> str:
    """The setting that an unknown name is likely to mean, and those that are known."""
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}known: {', '.join(known) or 'none'}"


_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "list": list,
    "object": dict,
}


def _check_value(setting: Setting, value: JsonValue) -> None:
    if setting.status == "refused":
        raise UsageError(f"setting {setting.name} is refused by the framework", f"see {setting.citation}")
    if value is None:
        return
    if not isinstance(value, _TYPES[setting.type]) or (isinstance(value, bool) and setting.type != "bool"):
        raise UsageError(f"setting {setting.name} is {value!r}", f"give a value of type {setting.type}")
    if setting.choices and value not in setting.choices:
        raise UsageError(f"setting {setting.name} is {value!r}", f"choose: {', '.join(setting.choices)}")
    if setting.minimum is not None and isinstance(value, int | float) and value < setting.minimum:
        raise UsageError(f"setting {setting.name} is {value!r}", f"give at least {setting.minimum}")


def write_run(prepared: Prepared, run: Path) -> Job:
    """Write everything that a run needs below the empty folder ``run``; returns the job as written."""
    for name in ("hooks/plants", "logs", "exit", "records", "output", "scratch/home", "scratch/tmp"):
        (run / name).mkdir(parents=True)
    _write_hooks(prepared, run)
    temporary_folder.link(run, _temporary_folder(prepared.job, run))
    text = render(prepared.job, run, prepared.script.name)
    (run / "job.sh").write_text(text, encoding="utf-8")
    names = [path for path in sorted((run / "hooks").rglob("*")) if path.is_file()]
    digests = {str(path.relative_to(run)): _sha256(path.read_bytes()) for path in names}
    digests |= {"job.sh": _sha256(text.encode()), "pack": prepared.pack_digest}
    job = prepared.job.model_copy(update={"digests": digests})
    (run / "job.json").write_text(job.model_dump_json(indent=1), encoding="utf-8")
    return job


def hook_files(prepared: Prepared) -> dict[str, Path]:
    """What a run is given to run, by its name in the run folder: script, recorder, pack and plants."""
    recorder = (*sorted(RECORDER.glob("*.py")), *sorted(RECORDER.glob("inject/*.py")))
    return {
        f"hooks/{prepared.script.name}": prepared.script,
        **{f"hooks/plumbline_recorder/{path.relative_to(RECORDER)}": path for path in recorder},
        **{f"hooks/binding/{name}": path for name, path in prepared.sources.items()},
        **dict(zip(prepared.job.plants, prepared.launch.plants, strict=True)),
    }


def _write_hooks(prepared: Prepared, run: Path) -> None:
    for name, path in hook_files(prepared).items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, run / name)


def render(job: Job, run: Path, script: str) -> str:
    """The text of ``job.sh``."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - a shell script
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    template = environment.from_string((PROCEDURES / "job.sh.j2").read_text(encoding="utf-8"))
    return template.render(job=job, run=str(run), script=script, variables=job_variables(job, run))


def job_variables(job: Job, run: Path) -> dict[str, str]:
    """The whole environment of a job: it writes caches into scratch, reaches no hub and sees no device.

    ``PLUMBLINE_RUN`` marks every process of the job, so that one that left its session is found again.
    """
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"} if job.world_size > 1 else {}
    return (
        passed
        | loopback
        | {
            "PATH": f"{Path(job.interpreter).parent}:/usr/local/bin:/usr/bin:/bin",
            "PLUMBLINE_RUN": str(run),
            "HOME": f"{run}/scratch/home",
            "TMPDIR": str(_temporary_folder(job, run)),
            "XDG_CACHE_HOME": f"{run}/scratch/cache",
            "HF_HOME": f"{run}/scratch/cache/huggingface",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }
    )


def _temporary_folder(job: Job, run: Path) -> Path:
    """A container sees the run at its own place and no link of ours beside it."""
    contained = images.runtime_of(Path(job.interpreter)) is not None
    return temporary_folder.own_folder(run) if contained else temporary_folder.temporary_folder(run)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
