"""The neutral copy that a verifier gets: sealed records and references under neutral names, and the question.

Runs become ``record-1``, ``record-2``, ...; what they are judged against lies in ``files/``. Of a run, the
spec, exit files, logs, records and outputs are copied, with a manifest of their own; job.sh and the hooks
stay behind, because they judge nothing and name where the run lay. Every path of ours, run id and verdict id
is rewritten, and the spec loses its target, interpreter, plants and approval. What was rewritten and the
digests of the originals stay with the server. Nothing of the finding is ever read here but the verdict's
check and arguments.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

import checks
from checks.errors import CheckError, Inconclusive, NotEvaluated
from checks.records.probe import probe
from checks.records.runs import Job, RunFolder, is_run_folder
from checks.references.packs import built_in, load_pack, pack_files
from checks.verdict import Verdict
from plumbline_mcp.findings.neutral import Changed, Copied, LeftOut, Neutral
from plumbline_mcp.findings.questions import QUESTION_FILE, Question
from plumbline_mcp.findings.records import Kept
from plumbline_mcp.scan.reevaluation import evidence_lost
from plumbline_mcp.scan.seals import broken_seal
from plumbline_mcp.workspace import StoredVerdict, Workspace

_RECORDS = frozenset({"run", "rows", "export", "trained", "adapter", "python"})
"""Inputs of checks that a job, or the environment of one, left behind; the others are what judges it."""
_COPIED = ("job.json", "exit/", "logs/", "records/")
_SPEC = {
    *("format", "procedure", "binding", "settings", "output", "world_size", "time_limit_s", "disk_bytes"),
    *("log_bytes", "system_version", "engine", "confinement"),
}
_NOT_COPIED = "source"
_MOST_FILES = 100_000


def prepare(
    workspace: Workspace, stored: StoredVerdict, folder: Path, hidden: tuple[str, ...] = ()
) -> tuple[Question, Kept]:
    """Make the neutral copy of what a verdict judged in the empty folder ``folder``.

    ``hidden`` are more ids to rewrite: those of other verdicts and of the finding. Raises `NotEvaluated`
    when evidence is gone and `Inconclusive` when it is not what was judged.
    """
    lost = evidence_lost(stored.verdict)
    if lost is not None:
        raise NotEvaluated(f"{stored.verdict.id} cannot be rebuilt: {lost[1]}", "run the check again first")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _Copy(workspace, stored, folder, hidden).made()


@dataclass
class _Copy:
    """One copy in the making."""

    workspace: Workspace
    stored: StoredVerdict
    folder: Path
    hidden: tuple[str, ...]
    placed: dict[str, str] = field(default_factory=dict)
    """Absolute path of what is copied -> its path in the copy."""
    records: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)
    rewritten: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def made(self) -> tuple[Question, Kept]:
        inputs = self._placed_inputs()
        names = self._names()
        for path, place in list(self.placed.items()):
            self._copy(Path(path), place, names)
        if "python" in self.stored.inputs:
            self._probe(str(self.stored.inputs["python"]), names)
        question = self._question(inputs)
        (self.folder / QUESTION_FILE).write_text(question.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return question, self._kept(names)

    # --- which path becomes what ------------------------------------------------------------------------

    def _placed_inputs(self) -> dict[str, JsonValue]:
        """The check's arguments with every path as its path in the copy."""
        inputs: dict[str, JsonValue] = {}
        for name, value in self.stored.inputs.items():
            if name == _NOT_COPIED:
                self.left_out.append("source: a checkout is not copied")
            elif name == "python":
                inputs[name] = f"{self._record()}/probe.json"
            elif name == "framework" and isinstance(value, str):
                inputs[name] = self._pack(value)
            elif isinstance(value, str) and value.startswith("/") and Path(value).exists():
                inputs[name] = self._place(name, Path(value))
            else:
                inputs[name] = value
        return inputs

    def _place(self, name: str, path: Path) -> str:
        known = self.placed.get(str(path))
        if known is not None:
            return known
        record = self._record() if name in _RECORDS else None
        if record is None:
            place = self._file(name, path)
        else:
            place = record if path.is_dir() else f"{record}/{name}{path.suffix}"
        self.placed[str(path)] = place
        if is_run_folder(path):
            self._place_job(path, place)
        return place

    def _place_job(self, path: Path, place: str) -> None:
        """A run brings the files that its job read, and its pack."""
        if reason := broken_seal(self.workspace, path):
            raise Inconclusive(reason, "rerun the procedure; a changed record is never judged")
        job = RunFolder.open(path).job
        self.ids[job.run_id] = place
        for name, given in job.inputs.items():
            if Path(given).exists():
                self._place(name, Path(given))
        if "framework" not in self.stored.inputs:
            self._pack(job.pack_folder or job.framework)

    def _record(self) -> str:
        self.records.append(f"record-{len(self.records) + 1}")
        return self.records[-1]

    def _file(self, name: str, path: Path) -> str:
        unused = name
        while unused in self.files:
            unused = f"{name}-{sum(known.startswith(name) for known in self.files) + 1}"
        self.files[unused] = f"files/{unused}" + ("" if path.is_dir() else "".join(path.suffixes[-1:]))
        return self.files[unused]

    def _pack(self, framework: str) -> str:
        """The pack's folder, once; its own name where it cannot be read."""
        try:
            pack = load_pack(framework)
        except CheckError as error:
            self.left_out.append(f"framework: {error.message}")
            return framework if framework in built_in() else ""
        return self._place("framework", pack.folder)

    # --- names ------------------------------------------------------------------------------------------

    def _names(self) -> dict[str, str]:
        """Every path of ours with its neutral name: what is copied, the workspace, the environments.

        No other folder: a conversation may speak of `/root`, and has to stay what was trained on.
        """
        paths = dict(self.placed)
        paths.setdefault(str(self.workspace.home), "workspace")
        for python in self._interpreters():
            paths.setdefault(str(Path(python).parent.parent), "environment")
        paths = {os.path.realpath(path): name for path, name in paths.items()} | paths
        return {path: name for path, name in paths.items() if len(Path(path).parts) > 2}

    def _names_in_records(self, names: dict[str, str]) -> dict[str, str]:
        """In what jobs wrote, also the folders around all that."""
        around = {str(Path(path).parent): "folder" for path in names} | {str(Path.home()): "home"}
        return {path: name for path, name in around.items() if len(Path(path).parts) > 1} | names

    def _interpreters(self) -> list[str]:
        named = [str(self.stored.inputs["python"])] if "python" in self.stored.inputs else []
        runs = (Path(path) for path in self.placed if is_run_folder(Path(path)))
        return [*named, *(job.interpreter for job in map(_job, runs) if job.interpreter)]

    def _all_ids(self) -> dict[str, str]:
        hidden = (self.stored.verdict.id, *self.hidden)
        return {name: "verdict" for name in hidden if name} | self.ids

    # --- copying ----------------------------------------------------------------------------------------

    def _copy(self, path: Path, place: str, names: dict[str, str]) -> None:
        is_record = place.partition("/")[0] in self.records
        neutral = Neutral(self._names_in_records(names), self._all_ids()) if is_record else Neutral(names)
        if is_record and is_run_folder(path):
            self._run(RunFolder.open(path), place, neutral)
        elif path.is_file():
            self._one(path, place, neutral)
        else:
            for name in _listed(path, pack=path / "pack.toml"):
                self._one(path / name, f"{place}/{name}", neutral)

    def _run(self, run: RunFolder, place: str, neutral: Neutral) -> None:
        """The sealed files with a manifest of what they are in the copy."""
        entries = {}
        for name, (sealed, _) in sorted(run.manifest.items()):
            if not name.startswith((*_COPIED, f"{run.job.output}/")):
                continue
            if name == "job.json":
                copied: Copied | None = self._spec(run, place, neutral)
            else:
                copied = self._one(run.path / name, f"{place}/{name}", neutral, sealed)
            if copied is not None:
                entries[neutral.text(name)] = {"sha256": copied.sha256, "size": copied.size}
        text = json.dumps({"format": 1, "files": entries}, indent=1)
        (self.folder / place / "manifest.json").write_text(text + "\n", encoding="utf-8")

    def _spec(self, run: RunFolder, place: str, neutral: Neutral) -> Copied:
        """What of the spec is asked about; a field that is not named here stays behind."""
        run.verified("job.json")
        job = run.job
        told = job.model_dump(include=_SPEC) | {
            "run_id": place,
            "inputs": {name: self.placed.get(path, "") for name, path in job.inputs.items()},
            "framework": job.framework if job.framework in built_in() else "files/framework",
        }
        content = (neutral.text(Job.model_validate(told).model_dump_json(indent=1)) + "\n").encode()
        path = self.folder / place / "job.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        original, digest = run.manifest["job.json"][0], hashlib.sha256(content).hexdigest()
        self.originals[f"{place}/job.json"] = original
        self.rewritten.append(f"{place}/job.json")
        return Copied(sha256=digest, size=len(content), original_sha256=original, rewritten=True)

    def _one(self, source: Path, place: str, neutral: Neutral, sealed: str | None = None) -> Copied | None:
        place = neutral.text(place)
        try:
            real = source if sealed is not None else source.resolve()
            copied = neutral.copy(real, self.folder / place, sealed)
        except Changed as reason:
            raise Inconclusive(f"{source}: {reason}", "rerun the procedure") from reason
        except (LeftOut, OSError) as reason:
            self.left_out.append(f"{place}: {reason}")
            return None
        self.originals[place] = copied.original_sha256
        if copied.rewritten:
            self.rewritten.append(place)
        return copied

    def _probe(self, python: str, names: dict[str, str]) -> None:
        """What the job's interpreter answers today, as the check asked it."""
        about = load_pack(str(self.stored.inputs["framework"])).about.framework
        record, digest, _ = probe(Path(python), about.distributions, about.module)
        place = f"{self.records[0]}/probe.json"
        text = Neutral(self._names_in_records(names), self._all_ids()).text(record.model_dump_json(indent=1))
        (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / place).write_text(text + "\n", encoding="utf-8")
        self.originals[place] = digest
        self.rewritten.append(place)

    # --- what is asked ----------------------------------------------------------------------------------

    def _question(self, inputs: dict[str, JsonValue]) -> Question:
        check = checks.discover().get(self.stored.verdict.check)
        if check is None:
            raise NotEvaluated(
                f"{self.stored.verdict.id} is of {self.stored.verdict.check!r}, no check of this version",
                "rest the finding on a verdict of a check of this version",
            )
        words = (check.question, f"Reference: {check.reference}.", f"Rule: {check.rule}.", _ASKED)
        return Question(
            check=check.name,
            text=" ".join(" ".join(words).split())[:4000],
            records=tuple(self.records),
            files=self.files,
            inputs=inputs,
            values=measured_names(self.stored.verdict),
        )

    def _kept(self, names: dict[str, str]) -> Kept:
        home = self.workspace.home
        inside = self.folder.is_relative_to(home)
        return Kept(
            folder=str(self.folder.relative_to(home) if inside else self.folder),
            names={name: path for path, name in names.items()} | {v: k for k, v in self._all_ids().items()},
            originals=self.originals,
            rewritten=tuple(self.rewritten),
            left_out=tuple(self.left_out),
        )


_ASKED = (
    "Judge it from the raw records in this folder alone. Answer with the outcome (pass, fail, or inconclusive"
    " with what is missing), the values that are asked for, the place of the fault, and every problem."
)


def measured_names(verdict: Verdict) -> tuple[str, ...]:
    """Names of every number that a check measured, in alphabetical order: none of them says what failed."""
    return tuple(sorted(measured_values(verdict)))[:500]


def measured_values(verdict: Verdict, failing: bool = False) -> dict[str, float]:
    """``<part>: <measurement>`` to its value; a name that stands twice in a part is left out.

    A distance in units of a bound is left out: it hangs on how the bound was derived.
    """
    values: dict[str, float] = {}
    twice: set[str] = set()
    for part in verdict.parts:
        if failing and part.outcome != "fail":
            continue
        for one in part.measurements:
            name = f"{part.name}: {one.name}"[:300]
            number = isinstance(one.value, int | float) and not isinstance(one.value, bool)
            if not number or "units of the bound" in one.name or not _finite(one.value):
                continue
            twice |= {name} & values.keys()
            values[name] = float(one.value or 0)
    return {name: value for name, value in values.items() if name not in twice}


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(float(value)) != float("inf") and value == value


def _job(path: Path) -> Job:
    return RunFolder.open(path).job


def _listed(folder: Path, pack: Path) -> list[str]:
    """Relative names of the files below a folder, sorted; links to folders are not followed."""
    if pack.is_file():
        return pack_files(folder)
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [Path(place, name).relative_to(folder).as_posix() for name in files]
        if len(found) > _MOST_FILES:
            raise NotEvaluated(
                f"{folder} holds more than {_MOST_FILES} files", "name the folder of a release"
            )
    return sorted(found)
