"""Reads a run folder: the spec, exit files and sealed records of one launch (layout: docs/run-folder.md)."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from checks.errors import BadInput, Inconclusive, NotEvaluated
from checks.rules import MAX_LINE_BYTES
from checks.verdict import Evidence, Frozen

RECORD_FORMAT = 1
"""The version of the record format these readers know; another one is refused."""

INPUTS = "inputs/"
"""Prefix, in a job's ``digests``, of the digest that each of its inputs was approved with."""
INPUT_DIGESTS = "exit/inputs.json"
"""What its supervisor read of the inputs before the job started and after it ended."""

_MAX_JSON = 16 * 2**20


class LaunchedRefusal(Frozen):
    """Settings that the framework has to refuse: launched by a binding of the pack, in a process apart."""

    name: str
    binding: str
    settings: dict[str, JsonValue] = {}


class Job(Frozen):
    """``job.json``: what was launched, by content."""

    format: int = RECORD_FORMAT
    run_id: str
    procedure: str = Field(description="rows, export, ...")
    binding: str = Field("", description="file of the pack that the procedure runs; empty: <procedure>.py")
    framework: str
    pack_folder: str = Field("", description="the pack as it was named, absolute; empty: a built-in one")
    target: dict[str, str] = {}
    settings: dict[str, JsonValue] = {}
    inputs: dict[str, str] = Field({}, description="name to absolute path: model, workload, ...")
    output: str = Field("output", description="folder, relative to the run, that the framework writes into")
    digests: dict[str, str] = Field({}, description="sha256 of what was launched: job.sh, pack, hooks")
    interpreter: str = ""
    plants: tuple[str, ...] = Field((), description="hooks that plant a fault; empty in a real run")
    world_size: int = 1
    refusals: tuple[LaunchedRefusal, ...] = Field((), description="launched by the first rank; all must fail")
    time_limit_s: float = 0.0
    cap_s: float = Field(0.0, description="what its task's node-hours left it to run; 0: more than its limit")
    disk_bytes: int = Field(0, description="what the run folder may take while it runs; 0: no limit")
    log_bytes: int = Field(0, description="kept of each stream of a rank; 0: the recorder's own limit")
    system_version: str = ""
    approval: str = "none"
    engine: str = "local"
    confinement: str = "none"


class Exit(Frozen):
    """``exit/rank-00000.json``, written by rename when the rank is gone."""

    rank: int
    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    host: str = ""
    started: str = ""
    ended: str = ""
    stopped: bool = Field(False, description="it was told to stop: it is not the rank that failed first")
    reason: str = Field("", description="how it ended, in words")

    @property
    def clean(self) -> bool:
        """Whether the rank ended by itself with code 0."""
        return self.code == 0 and self.signal is None and not self.timed_out


class Ending(Frozen):
    """``exit/job.json``: how the whole job ended, as its supervisor saw it."""

    format: int = RECORD_FORMAT
    outcome: str = Field(description="succeeded, failed, cancelled or timed_out")
    reason: str = ""
    failed_rank: int | None = Field(None, description="the first rank that failed; the others were stopped")
    code: int | None = None
    signal: int | None = None
    started: str = ""
    ended: str = ""


def is_run_folder(path: Path) -> bool:
    """Whether a folder is a run folder (it holds ``job.json``)."""
    return (path / "job.json").is_file()


def sha256_file(path: Path) -> tuple[str, int]:
    """Digest and size of a file, read once through a descriptor that follows no link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, os.fstat(file.fileno()).st_size


def file_evidence(path: Path, role: str) -> Evidence:
    """A file that the user named as evidence; links are followed, because model caches are made of them."""
    digest, size = sha256_file(path.resolve())
    return Evidence(path=str(path), sha256=digest, size=size, role=role)


def read_json(path: Path, limit: int = _MAX_JSON) -> Any:
    """Parse a JSON file of bounded size. Raises `Inconclusive` when it is no JSON or too large."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise NotEvaluated(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > limit:
        raise Inconclusive(f"{path} is larger than {limit} bytes, the limit for a JSON record")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Inconclusive(f"{path} is not valid JSON: {error}") from error


def json_lines(run: "RunFolder", name: str, limit: int) -> Iterator[tuple[int, Any]]:
    """Number (from 1) and value of each line of a sealed record; no file is no line.

    Raises `Inconclusive` for a line that is no JSON and for more or longer lines than the limits.
    """
    if name not in run.manifest:
        return
    with run.verified(name).open("rb") as file:
        for number in range(1, limit + 2):
            raw = file.readline(MAX_LINE_BYTES + 1)
            if not raw:
                return
            where = f"run {run.job.run_id}: {name}, line {number}"
            if len(raw) > MAX_LINE_BYTES or number > limit:
                raise Inconclusive(f"{where}: the record is larger than its limit")
            try:
                yield number, json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise Inconclusive(f"{where} is no JSON: {str(error)[:200]}") from error


@dataclass(frozen=True)
class RunFolder:
    """A sealed run. Every file is verified against the manifest before it is used."""

    path: Path
    job: Job
    manifest: dict[str, tuple[str, int]]

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open a run folder. Raises `BadInput` (none there), `NotEvaluated` (not sealed), `Inconclusive`."""
        if not is_run_folder(path):
            raise BadInput(f"{path} is no run folder: it has no job.json", "name a folder under runs/")
        job = _job(path / "job.json")
        if not (path / "manifest.json").is_file():
            raise NotEvaluated(
                f"run {job.run_id} is not sealed: it has no manifest.json", "rerun the procedure"
            )
        run = cls(path, job, _manifest(path / "manifest.json"))
        run.verified("job.json")
        return run

    def verified(self, name: str) -> Path:
        """The path of a sealed file whose bytes equal the manifest's digest. Raises `Inconclusive`."""
        if name not in self.manifest:
            raise Inconclusive(f"run {self.job.run_id}: {name} is not in the manifest")
        path, (wanted, _) = self.path / name, self.manifest[name]
        try:
            digest, _ = sha256_file(path)
        except OSError as error:
            raise Inconclusive(f"run {self.job.run_id}: {name} cannot be read: {error.strerror}") from error
        if digest != wanted:
            raise Inconclusive(
                f"run {self.job.run_id}: {name} was changed after sealing "
                f"({digest[:12]}, sealed as {wanted[:12]})",
                "rerun the procedure; a changed record is never judged",
            )
        return path

    def files(self, prefix: str) -> list[str]:
        """Names of sealed files below a prefix, sorted."""
        return sorted(name for name in self.manifest if name.startswith(prefix))

    def exits(self) -> list[Exit]:
        """One per rank that left an exit file, by rank."""
        return [Exit.model_validate(read_json(self.verified(name))) for name in self.files("exit/rank-")]

    def ending(self) -> Ending | None:
        """How the whole job ended; None where the engine of that time did not write it."""
        name = "exit/job.json"
        if name not in self.manifest:
            return None
        try:
            return Ending.model_validate(read_json(self.verified(name)))
        except ValidationError as error:
            met = error.errors()[0]["msg"]
            raise Inconclusive(
                f"run {self.job.run_id}: {name} does not fit the record schema: {met}"
            ) from error

    def changed_inputs(self) -> str:
        """Why what the job read is not what was approved: before it started, or when it ended; '' if it is.

        A job that was started without an approval has no approved digests: nothing is said of it.
        """
        approved = {
            name.removeprefix(INPUTS): digest
            for name, digest in self.job.digests.items()
            if name.startswith(INPUTS)
        }
        if not approved:
            return ""
        if INPUT_DIGESTS not in self.manifest:
            return f"run {self.job.run_id}: its inputs were not read again, so nothing says what it read"
        seen = read_json(self.verified(INPUT_DIGESTS))
        for when, said in (("start", "before the job started"), ("end", "when the job had ended")):
            found = seen.get(when) if isinstance(seen, dict) else None
            for name, digest in approved.items():
                if not isinstance(found, dict) or found.get(name) != digest:
                    return f"run {self.job.run_id}: {name} was not what was approved {said}"
        return ""

    def rank_folders(self) -> list[str]:
        """``records/rank-00000`` ... of every rank that recorded anything."""
        return sorted({"/".join(name.split("/")[:2]) for name in self.files("records/rank-")})

    @property
    def output(self) -> Path:
        """The folder the framework wrote into."""
        return self.path / self.job.output

    def evidence(self, name: str, role: str) -> Evidence:
        """The sealed file as evidence."""
        digest, size = self.manifest[name]
        return Evidence(path=str(self.path / name), sha256=digest, size=size, role=role)


def _job(path: Path) -> Job:
    raw = read_json(path)
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != RECORD_FORMAT:
        raise Inconclusive(
            f"{path}: record format {version!r} is unknown (this version reads {RECORD_FORMAT})"
        )
    try:
        return Job.model_validate(raw)
    except ValidationError as error:
        raise Inconclusive(f"{path} does not fit the record schema: {error.errors()[0]['msg']}") from error


def _manifest(path: Path) -> dict[str, tuple[str, int]]:
    raw = read_json(path)
    try:
        entries = {
            str(name): (str(entry["sha256"]), int(entry["size"])) for name, entry in raw["files"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Inconclusive(f"{path} is no manifest: {error}") from error
    for name in entries:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise Inconclusive(f"{path} names a path outside the run: {name!r}")
    return entries
