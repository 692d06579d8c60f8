"""One kill point: start, wait, signal, look, run again, look."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.soak import left_behind
from tests.soak.left_behind import Facts
from tests.soak.processes import deliver_signals, descendants, wait_until_gone
from tests.soak.programs import Place, Program

GRACE_S = 10.0
"""A job has 2 s for itself and 3 s after SIGTERM before its supervisor kills it; the rest is for a busy
machine.
"""
JOB_S = 90.0
"""A job goes on when its client is killed: so long may it take to its own end, on a busy machine."""
END_S = 40.0
"""How long a program may take to end: a supervisor's two graces, on a busy machine."""
EARLIER = 4
"""How often a point is played again, earlier each time: a clean run may take longer when others run too."""
SIGNALS = ("KILL", "INT", "KILL", "TERM", "KILL", "HUP")
"""In turn: half of the points are kills that nobody can catch."""
ENDS = {"KILL": {-9}, "INT": {130, -2}, "TERM": {143, -15}, "HUP": {129, -1}}
"""Exit codes of a program that a signal stopped."""


@dataclass(frozen=True)
class Clean:
    """A clean run in a fresh place: what every later one is held against."""

    program: Program
    seconds: float
    code: int
    facts: Facts
    tree: frozenset[str]
    finished: dict[str, str]
    size: int


@dataclass(frozen=True)
class Point:
    """When and how a program is stopped: ``fraction`` of the seconds that a clean run takes."""

    program: str
    signal: str
    fraction: float


@dataclass
class Played:
    """What came of a point."""

    point: Point
    late: bool = False
    code: int = 0
    gone_after_s: float = 0.0
    survivors: list[str] = field(default_factory=list)
    half_written: list[str] = field(default_factory=list)
    rerun: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """Everything that should not have been."""
        return [*self.survivors, *self.half_written, *self.rerun]


def choose(programs: Sequence[str], count: int, seed: int) -> Iterator[Point]:
    """Points over the programs in turn, each at a seeded moment."""
    moments, numbers = random.Random(seed), dict.fromkeys(programs, 0)
    for index in range(count):
        name = programs[index % len(programs)]
        number = numbers[name] + programs.index(name)
        numbers[name] += 1
        yield Point(name, SIGNALS[number % len(SIGNALS)], moments.uniform(0.02, 1.0))


def rehearse(program: Program, folder: Path, *, warm: bool = True) -> Clean:
    """Run it clean: once, after a run that warms the disk."""
    deliver_signals()
    for name in ("first", "clean") if warm else ("clean",):
        place = Place(folder / name)
        program.prepare(place)
        started = time.monotonic()
        code = program.finish(program.start(place), place)
        seconds = time.monotonic() - started
        if code not in (0, 1, 2) or said(place) == "":
            raise RuntimeError(f"{program.name} fails clean with {code}: {said(place)}")
        if seconds > 15 and name == "first":
            break
    clean = Clean(
        program,
        seconds,
        code,
        left_behind.facts(place),
        frozenset(left_behind.tree(place)),
        left_behind.finished(place),
        sum(
            path.stat().st_size
            for path in place.folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        ),
    )
    shutil.rmtree(folder)
    return clean


def said(place: Place) -> str:
    """The end of what the program wrote, errors last."""
    return "".join((place.folder / name).read_text(errors="replace") for name in ("out", "err")).strip()[
        -500:
    ]


def play(clean: Clean, point: Point, folder: Path) -> Played:
    """Play a point in a fresh place and judge it; one whose program had ended by then is played earlier."""
    for _ in range(EARLIER):
        played = _played(clean, point, folder)
        if not played.late or played.violations:
            break
        point = replace(point, fraction=point.fraction * 0.7)
    return played


def _played(clean: Clean, point: Point, folder: Path) -> Played:
    program, place, played = clean.program, Place(folder), Played(point)
    program.prepare(place)
    process = program.start(place)
    time.sleep(point.fraction * clean.seconds)
    known = descendants(process.pid)
    played.late = process.poll() is not None
    if played.late:
        process.communicate()
        shutil.rmtree(folder)
        return played
    process.send_signal(signal.Signals[f"SIG{point.signal}"])
    try:
        played.code = process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        played.survivors = [f"the program went on for {END_S:g} s after SIG{point.signal}"]
        played.code = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    going_on = point.signal == "KILL" and program.starts_jobs
    grace_s = JOB_S if going_on else GRACE_S
    played.gone_after_s, left = wait_until_gone(folder, known, process.pid, grace_s)
    played.survivors += [f"process {one.pid} survived: {one.command[:150]}" for one in left]
    _judge_stopped(clean, place, played)
    played.rerun = judge_rerun(clean, place)
    if not played.violations:
        shutil.rmtree(folder)
    return played


def _judge_stopped(clean: Clean, place: Place, played: Played) -> None:
    """After the signal: the workspace is whole; one that could be caught was also tidied up."""
    found = left_behind.half_written(place, clean.finished) + left_behind.doctor(place)
    stopped = played.code in ENDS[played.point.signal]
    if played.code != clean.code and not stopped:
        found.append(f"exit code {played.code} after SIG{played.point.signal}")
    said = (place.folder / "err").read_text(errors="replace")
    if "Traceback" in said:
        found.append(f"a traceback was shown: {said.strip().splitlines()[-1][:150]}")
    if played.point.signal != "KILL":
        found += left_behind.unfinished_runs(place)
        found += [
            text for text in _extra(clean, place) if not text.startswith("cache/")
        ]  # the next build sweeps
    played.half_written = found


def judge_rerun(clean: Clean, place: Place) -> list[str]:
    """The same command again: the clean outcome, new ids, nothing of the stopped one left."""
    before, known = left_behind.facts(place), left_behind.ids(place)
    code = clean.program.finish(clean.program.start(place), place)
    after, found = left_behind.facts(place), []
    if code != clean.code:
        found.append(f"exit code {code} where a clean run has {clean.code}: {said(place)}")
    if clean.program.seed is None:
        found += _not_added("verdicts", before.verdicts, after.verdicts, clean.facts.verdicts)
        found += _not_added("runs", before.runs, after.runs, clean.facts.runs)
    if not set(clean.facts.reports) <= set(after.reports):
        found.append(f"reports: {after.reports} where a clean run writes {clean.facts.reports}")
    if reused := _reused(place, known):
        found.append(f"ids given twice: {', '.join(reused)}")
    found += left_behind.half_written(place, clean.finished) + left_behind.unfinished_runs(place)
    return found + _extra(clean, place)


def _not_added(
    what: str, before: Sequence[str], after: Sequence[str], wanted: Sequence[str]
) -> Iterator[str]:
    """What a rerun stored is what a clean run stores."""
    if sorted(after) != sorted([*before, *wanted]):
        yield f"{what}: {len(before)} before, {len(after)} after, a clean run adds {len(wanted)}"


def _extra(clean: Clean, place: Place) -> list[str]:
    """Paths that no clean run leaves; the topmost of each, not what lies below it."""
    extra = left_behind.tree(place) - clean.tree
    return [f"{path} was left behind" for path in sorted(extra) if str(Path(path).parent) not in extra]


def _reused(place: Place, known: set[str]) -> list[str]:
    """Ids that were given before the rerun and started or stored again in it."""
    workspace = left_behind.open_workspace(place)
    if workspace is None:
        return []
    given = [
        entry.subject
        for entry in workspace.audit.entries()
        if entry.event in ("run_started", "verdict_stored")
    ]
    workspace.close()
    return sorted(name for name in known if given.count(name) > 1)
