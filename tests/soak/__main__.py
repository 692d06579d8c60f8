"""``python -m tests.soak [--points N] [--seed S] [--program NAME]``: stop every program at seeded moments."""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.soak import job_points
from tests.soak.full_disk import Filled, fractions, play_full
from tests.soak.job_points import JobPlayed
from tests.soak.points import Clean, Played, choose, play, rehearse
from tests.soak.programs import NAMES, Inputs, Skipped


def main(arguments: list[str]) -> int:
    """Play the points and print the table; 1 when anything was violated."""
    asked = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="plumbline-soak-"))
    inputs, programs, skipped = Inputs(folder / "inputs"), {}, {}
    for name in (asked.program or NAMES) if asked.points or asked.disks else ():
        try:
            programs[name] = rehearse(inputs.program(name), folder / "rehearsal" / name)
        except Skipped as reason:
            skipped[name] = str(reason)
            continue
        _say(f"{name}: a clean run takes {programs[name].seconds:.1f} s")
    stopped = _stop(programs, asked, folder)
    try:
        filled = _fill(programs, asked, folder)
    except Skipped as reason:
        filled, skipped["full disks"] = [], str(reason)
    jobs = _kill_jobs(asked, folder)
    took = sum(played.seconds for played in jobs)
    for table in (_table(stopped), _disk_table(filled), _job_table(jobs)):
        if table.row_count:
            Console(width=110).print(table)
    for name, reason in skipped.items():
        sys.stdout.write(f"not soaked: {name}: {reason}\n")
    broken = sum(bool(played.violations) for played in [*stopped, *filled, *jobs])
    count = f"{len(stopped)} kill points, {len(filled)} full disks and {len(jobs)} kill points of jobs"
    sys.stdout.write(f"{count}, {broken} violated, seed {asked.seed}\n")
    if jobs:
        sys.stdout.write(f"kill points of jobs: {took / 60:.1f} min, {took / len(jobs):.1f} s a point\n")
    if broken:
        sys.stdout.write(f"the places of violated points are kept in {folder}\n")
    else:
        shutil.rmtree(folder)
    return 1 if broken else 0


def _stop(programs: dict[str, Clean], asked: argparse.Namespace, folder: Path) -> list[Played]:
    results = []
    points = choose(list(programs), asked.points if programs else 0, asked.seed)
    for number, point in enumerate(points, start=1):
        played = play(programs[point.program], point, folder / f"point-{number:03d}")
        results.append(played)
        _say(f"[{number}/{asked.points}] {_line(played)}", played.violations)
    return results


def _fill(programs: dict[str, Clean], asked: argparse.Namespace, folder: Path) -> list[Filled]:
    """Each program on as many disks as it has a share of, every disk another size."""
    results = []
    for name, clean in programs.items():
        for fraction in fractions(-(-asked.disks // len(programs)), asked.seed) if asked.disks else ():
            filled = play_full(clean, fraction, folder / f"disk-{len(results):03d}")
            results.append(filled)
            _say(f"disk: {name}, {filled.free} bytes free: exit {filled.code}", filled.violations)
            if not filled.enough:
                _say(f"    said: {' '.join(filled.told.split())[-300:]}")
    return results


def _kill_jobs(asked: argparse.Namespace, folder: Path) -> list[JobPlayed]:
    """Whoever starts, supervises or ends a job is killed."""
    if not asked.jobs:
        return []
    inputs = job_points.Inputs(folder / "job")
    lives, results = job_points.rehearse(inputs, folder / "rehearsal" / "job"), []
    for number, point in enumerate(job_points.choose(asked.jobs, asked.seed), start=1):
        played = job_points.play(inputs, lives, point, folder / f"job-{number:03d}")
        results.append(played)
        said = f"{point.victim} killed at {point.fraction:.2f}: {', '.join(played.states)}"
        _say(f"[job {number}/{asked.jobs}] {said}", played.violations)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--points", type=int, default=64, help="how many, over all programs (64)")
    parser.add_argument("--disks", type=int, default=24, help="how many full disks, over all programs (24)")
    parser.add_argument("--jobs", type=int, default=100, help="how many kill points of jobs (100)")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--program", action="append", choices=NAMES, help="may be repeated; all by default")
    return parser


def _say(text: str, violations: list[str] | None = None) -> None:
    sys.stderr.write("\n    ".join([text, *(violations or ())]) + "\n")
    sys.stderr.flush()


def _line(played: Played) -> str:
    point = played.point
    ended = "had ended" if played.late else f"exit {played.code}, all gone after {played.gone_after_s:.1f} s"
    judged = "VIOLATED" if played.violations else "ok"
    return f"{point.program}: SIG{point.signal} at {point.fraction:.2f}: {ended}: {judged}"


def _table(results: list[Played]) -> Table:
    table = Table(title="stopped at seeded moments, then run again")
    columns = ("program", "signal", "points", "late", "survivors", "half-written", "rerun ok", "slowest end")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for key in dict.fromkeys((p.point.program, p.point.signal) for p in results):
        group = [p for p in results if (p.point.program, p.point.signal) == key]
        table.add_row(
            *key,
            str(len(group)),
            str(sum(p.late for p in group)),
            str(sum(len(p.survivors) for p in group)),
            str(sum(len(p.half_written) for p in group)),
            f"{sum(not p.rerun for p in group)}/{len(group)}",
            f"{max(p.gone_after_s for p in group):.1f} s",
        )
    return table


def _disk_table(results: list[Filled]) -> Table:
    table = Table(title="the disk was full, then there was space and it was run again")
    for column in ("program", "disks", "refused, saying why", "had enough", "violated"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name in dict.fromkeys(filled.program for filled in results):
        group = [filled for filled in results if filled.program == name]
        enough = sum(filled.enough for filled in group)
        broken = sum(bool(filled.violations) for filled in group)
        table.add_row(name, *map(str, (len(group), len(group) - enough - broken, enough, broken)))
    return table


def _job_table(results: list[JobPlayed]) -> Table:
    table = Table(title="whoever starts, supervises or ends a job was killed, then the job was run again")
    for column in ("killed", "points", "late", "how its run ended", "s a point", "violated"):
        table.add_column(column, justify="left" if column in ("killed", "how its run ended") else "right")
    for victim in dict.fromkeys(played.point.victim for played in results):
        group = [played for played in results if played.point.victim == victim]
        ended = Counter(state for played in group for state in played.states)
        table.add_row(
            victim,
            str(len(group)),
            str(sum(played.late for played in group)),
            ", ".join(f"{count} {state}" for state, count in ended.most_common()),
            f"{sum(played.seconds for played in group) / len(group):.1f}",
            str(sum(bool(played.violations) for played in group)),
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
