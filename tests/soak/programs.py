"""What is soaked: the installed program with real inputs, each started as a user or an agent starts it."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from checks.references.packs import load_pack
from plumbline_mcp.engines import environments
from plumbline_mcp.scan.example_release import write_release as write_embedded
from plumbline_mcp.scan.example_workload import write_workload as write_embedded_workload
from tests.checks import tiny_release
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment
from tests.plumbline_mcp.engines.small_pack import write_pack
from tests.wheels import write_wheel

TIME_LIMIT_S = 600


class Skipped(Exception):
    """Raised when a program cannot be soaked on this machine."""


@dataclass(frozen=True)
class Place:
    """A point's own folder: workspace, working folder, temporary files, caches.

    ``disk`` is a folder below it that holds all but the program's output, where that disk is to fill.
    """

    folder: Path
    disk: str = "."

    @property
    def home(self) -> Path:
        return self.folder / self.disk / "home"

    @property
    def cache(self) -> Path:
        return self.folder / self.disk / "cache"

    @property
    def temporary(self) -> Path:
        return self.folder / self.disk / "tmp"

    def make(self) -> "Place":
        for path in (self.folder, self.temporary, self.cache):
            path.mkdir(parents=True, exist_ok=True)
        return self


@dataclass(frozen=True)
class Program:
    """One command line and what it needs. ``seed`` fills a fresh workspace before it starts.

    One that ``starts_jobs`` may leave a job that goes on when it is killed.
    """

    name: str
    arguments: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    own_cache: bool = False
    seed: Path | None = None
    launcher: Path = LAUNCHER
    messages: tuple[str, ...] = ()
    starts_jobs: bool = False

    def prepare(self, place: Place) -> None:
        """Put what the program finds into a fresh place."""
        place.make()
        if self.seed is not None:
            shutil.copytree(self.seed, place.home, dirs_exist_ok=True)

    def start(self, place: Place) -> "subprocess.Popen[bytes]":
        """Start it; its output goes to files, so that nobody has to read along."""
        own = {"TMPDIR": str(place.temporary), "XDG_CACHE_HOME": str(place.cache)}
        kept = own if self.own_cache else {"TMPDIR": own["TMPDIR"]} | _cache_variable()
        with (place.folder / "out").open("wb") as out, (place.folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [self.launcher, *self.arguments],
                cwd=place.folder,
                env=environment(place.home, **kept, **self.variables),
                stdin=subprocess.PIPE if self.messages else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        if process.stdin is not None:
            process.stdin.write("".join(self.messages).encode())
            process.stdin.flush()
        return process

    def finish(self, process: "subprocess.Popen[bytes]", place: Place) -> int:
        """Wait for the end; a server is told to end once it has answered. Returns the exit code."""
        until = time.monotonic() + TIME_LIMIT_S
        if process.stdin is not None:
            answered = f'"id":{len(self.messages) - 1}'.encode()
            while process.poll() is None and answered not in (place.folder / "out").read_bytes():
                if time.monotonic() > until:
                    process.kill()
                time.sleep(0.05)
            process.stdin.close()
        return process.wait(timeout=max(1.0, until - time.monotonic()))


def _cache_variable() -> dict[str, str]:
    return {name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ}


class Inputs:
    """Makes the programs' inputs below one folder, each when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def program(self, name: str) -> Program:
        """The program of that name. Raises `Skipped` with the reason."""
        return _PROGRAMS[name](self)

    def tiny(self) -> list[str]:
        """Options of a data check on the tiny release, which passes."""
        folder = self.folder / "tiny"
        if not folder.exists():
            tiny_release.write_release(folder)
            tiny_release.write_workload(folder / "workload.jsonl")
            tiny_release.write_rows(folder / "rows.jsonl", tiny_release.rows())
        paths = {"model": folder, "workload": folder / "workload.jsonl", "rows": folder / "rows.jsonl"}
        return [text for option, path in paths.items() for text in (f"--{option}", str(path))]

    def embedded(self) -> Path:
        """The embedded release and its workload."""
        folder = self.folder / "embedded"
        if not folder.exists():
            write_embedded(folder / "release")
            write_embedded_workload(folder / "workload.jsonl", 60)
        return folder

    def weights(self) -> Path:
        """A release of one shard and two copies of it: one equal, one with a tensor of other values."""
        folder = self.folder / "weights"
        if not folder.exists():
            shutil.copytree(self.embedded() / "release", folder / "release")
            shutil.copytree(folder / "release", folder / "export")
        return folder

    def filled(self) -> Path:
        """A workspace with verdicts, made by the program itself."""
        place = Place(self.folder / "filled").make()
        if not place.home.exists():
            for _ in range(2):
                check = self.program("check data")
                if check.finish(check.start(place), place):
                    raise Skipped(f"the data check fails: {(place.folder / 'err').read_text()[-300:]}")
        return place.home

    def pack(self) -> tuple[Path, Path]:
        """A connection pack whose environment is two tiny wheels, and the folder of those wheels."""
        folder, wheels = self.folder / "pack", self.folder / "wheels"
        if not folder.exists():
            wheels.mkdir()
            write_wheel(wheels, "leaf", "2.0")
            write_wheel(wheels, "small", "3.0", requires=["leaf>=2"])
            write_pack(folder)
            about = folder / "pack.toml"
            about.write_text(f'{about.read_text()}[environment]\nrequirements = ["small==3.0"]\n')
        return folder, wheels


def _check_data(inputs: Inputs) -> Program:
    return Program("check data", ("check", "data", *inputs.tiny(), "--json"))


def _check_export(inputs: Inputs) -> Program:
    folder = inputs.weights()
    sides = ("--original", str(folder / "release"), "--export", str(folder / "export"))
    return Program("check export", ("check", "export", *sides, "--json"))


def _report(inputs: Inputs) -> Program:
    return Program("report", ("report", "--json"), seed=inputs.filled())


def _environment(inputs: Inputs) -> Program:
    pack, wheels = inputs.pack()
    sides = ("--model", str(inputs.tiny()[1]), "--workload", str(inputs.tiny()[3]))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    arguments = ("run", "rows", "--framework", str(pack), *sides, "--json")
    return Program("environment", arguments, offline, own_cache=True, starts_jobs=True)


def _run(procedure: str) -> Callable[[Inputs], Program]:
    def made(inputs: Inputs) -> Program:
        _need_environment()
        folder = inputs.embedded()
        workload = ("--workload", str(folder / "workload.jsonl")) if procedure == "rows" else ()
        options = ("--model", str(folder / "release"), *workload, "--json")
        return Program(f"run {procedure}", ("run", procedure, *options), starts_jobs=True)

    return made


def _onboard(_: Inputs) -> Program:
    _need_environment()
    return Program("onboard", ("onboard", "--sign", "example", "--json"), starts_jobs=True)


def _serve(inputs: Inputs) -> Program:
    arguments = dict(zip(*[iter(text.removeprefix("--") for text in inputs.tiny())] * 2, strict=True))
    about = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "soak", "version": "1"},
    }
    call = {"name": "check_data", "arguments": arguments}
    sent = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    )
    return Program("serve", ("serve",), messages=tuple(json.dumps(one) + "\n" for one in sent))


def _need_environment() -> None:
    """The framework's environment, from the cache (built the first time). Raises `Skipped` without it."""
    wanted = load_pack("transformers").about.environment
    try:
        environments.build(wanted.requirements, without_dependencies=wanted.without_dependencies)
    except environments.BuildError as error:
        raise Skipped(f"the framework's environment cannot be built here: {error}") from error


_PROGRAMS: dict[str, Callable[[Inputs], Program]] = {
    "check data": _check_data,
    "check export": _check_export,
    "report": _report,
    "environment": _environment,
    "serve": _serve,
    "run rows": _run("rows"),
    "run export": _run("export"),
    "onboard": _onboard,
}
NAMES = tuple(_PROGRAMS)
QUICK = ("check data", "report", "environment", "serve")
"""What `make test` soaks: no program of these takes more than a few seconds."""
