"""What a stopped program leaves: in the workspace's database, in run folders, reports and caches."""

import hashlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from checks.errors import CheckError
from checks.records.runs import RunFolder
from plumbline_mcp.errors import PlumblineError, WorkspaceError
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment
from tests.soak.programs import Place

MANY = 100_000


@dataclass(frozen=True)
class Facts:
    """What a workspace holds, without what differs between equal runs (ids, times, digests of paths)."""

    verdicts: tuple[str, ...]
    runs: tuple[str, ...]
    reports: tuple[str, ...]


def open_workspace(place: Place) -> Workspace | None:
    """The workspace, None when the program had not made one yet."""
    if not (place.home / "plumbline.db").is_file():
        return None
    return Workspace.open(place.home, create=False)


def facts(place: Place) -> Facts:
    """What the workspace holds; only runs that were sealed count."""
    workspace = open_workspace(place)
    if workspace is None:
        return Facts((), (), ())
    verdicts = [stored.verdict for stored in workspace.verdicts(limit=MANY)][::-1]
    runs = workspace.runs_list(RunState.SEALED, limit=MANY)
    workspace.close()
    return Facts(
        verdicts=tuple(
            json.dumps([v.check, v.outcome, [[part.name, part.outcome] for part in v.parts]])
            for v in verdicts
        ),
        runs=tuple(f"{run.job.procedure} {run.job.framework}" for run in runs),
        reports=tuple(sorted(nameless(path, place.home) for path in place.home.glob("reports/*/*.*"))),
    )


def nameless(path: Path, below: Path) -> str:
    """A path without the numbers of ids and processes."""
    return re.sub(r"-\d{4,}|\.\d+\.[0-9a-f]{8}(?=\.part)", "-N", str(path.relative_to(below)))


def tree(place: Place) -> set[str]:
    """Every path of a place that a program made, without compiled Python (an import writes it or not)."""
    roots = (place.home, place.cache, place.temporary)
    return {
        nameless(path, place.folder / place.disk)
        for root in roots
        for path in root.rglob("*")
        if "__pycache__" not in path.parts
    }


def ids(place: Place) -> set[str]:
    """Every id that the audit log names."""
    workspace = open_workspace(place)
    if workspace is None:
        return set()
    found = {entry.subject for entry in workspace.audit.entries()}
    workspace.close()
    return found


def half_written(place: Place, clean: dict[str, str]) -> list[str]:
    """What could be taken for a result and is not whole. ``clean``: digests of what a clean run makes."""
    return [*_broken_database(place), *_broken_runs(place), *_broken_reports(place), *_other(place, clean)]


def _broken_database(place: Place) -> list[str]:
    try:
        workspace = open_workspace(place)
        if workspace is None:
            return []
        found = workspace.verify()
        stored = {one.verdict.id for one in workspace.verdicts(limit=MANY)}
        workspace.close()
    except WorkspaceError as error:
        return [error.message]
    return found + [f"{name} was told to the user and is not stored" for name in _told(place) - stored]


def _told(place: Place) -> set[str]:
    """The id of the verdict that the program printed, if it came to that."""
    try:
        said = json.loads((place.folder / "out").read_text())
    except (OSError, ValueError):
        return set()
    return {said["id"]} if isinstance(said, dict) and "parts" in said else set()


def _broken_runs(place: Place) -> list[str]:
    """Runs that say that they are sealed and are not."""
    workspace = open_workspace(place)
    if workspace is None:
        return []
    broken = []
    for run in workspace.runs_list(RunState.SEALED, limit=MANY):
        try:
            folder = RunFolder.open(workspace.runs / run.run_id)
            for name in folder.files(""):
                folder.verified(name)
        except (CheckError, PlumblineError) as error:
            broken.append(f"run {run.run_id} is sealed and cannot be read: {error}")
    workspace.close()
    return broken


def unfinished_runs(place: Place) -> list[str]:
    """Run folders that are not sealed, and runs that count as running."""
    workspace = open_workspace(place)
    if workspace is None:
        return []
    sealed = {run.run_id for run in workspace.runs_list(RunState.SEALED, limit=MANY)}
    running = [
        f"{run.run_id} still counts as {state}"
        for state in (RunState.SUBMITTING, RunState.RUNNING)
        for run in workspace.runs_list(state, limit=MANY)
    ]
    workspace.close()
    names = (path.name for path in workspace.runs.iterdir() if path.is_dir())
    return running + [f"{name} is not sealed and still there" for name in names if name not in sealed]


def _broken_reports(place: Place) -> list[str]:
    return [
        f"{path} is not whole"
        for path in place.home.glob("reports/*/report.html")
        if not path.read_text().rstrip().endswith("</html>")
    ]


def finished(place: Place) -> dict[str, str]:
    """Digest of each thing that is made once and used again: example releases and environments."""
    named = re.compile(r"[a-z0-9_]+-\d+-rows-[0-9a-f]{12}")
    made = {path for path in place.home.glob("example/*") if named.fullmatch(path.name)}
    made |= {path.parent for path in place.cache.glob("plumbline/environments/*/complete.json")}
    return {nameless(path, place.folder / place.disk): _contents(path) for path in made}


def _contents(folder: Path) -> str:
    """Digest of names and sizes: contents name the folder's own path, so they differ between places."""
    files = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def _other(place: Place, clean: dict[str, str]) -> list[str]:
    return [
        f"{name} counts as finished and lacks files"
        for name, digest in finished(place).items()
        if clean.get(name, digest) != digest
    ]


def doctor(place: Place) -> list[str]:
    """What ``plumbline doctor`` finds bad."""
    ended = subprocess.run(
        [LAUNCHER, "doctor", "--json"],
        cwd=place.folder,
        env=environment(place.home),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    try:
        findings = json.loads(ended.stdout)["findings"]
    except (ValueError, KeyError):
        return [f"doctor said: {(ended.stdout + ended.stderr)[-200:]}"]
    return [f"doctor: {one['name']}: {one['found']}" for one in findings if one["state"] == "bad"]
