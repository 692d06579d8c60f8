"""``python -m tests.soak [--points N] [--seed S] [--program NAME]``: stop every program at seeded moments."""

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.soak.points import Played, choose, play, rehearse
from tests.soak.programs import NAMES, Inputs, Skipped


def main(arguments: list[str]) -> int:
    """Play the points and print the table; 1 when anything was violated."""
    asked = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="plumbline-soak-"))
    inputs, programs, skipped = Inputs(folder / "inputs"), {}, {}
    for name in asked.program or NAMES:
        try:
            programs[name] = rehearse(inputs.program(name), folder / "rehearsal" / name)
        except Skipped as reason:
            skipped[name] = str(reason)
            continue
        _say(f"{name}: a clean run takes {programs[name].seconds:.1f} s")
    results: list[Played] = []
    for number, point in enumerate(choose(list(programs), asked.points, asked.seed)):
        played = play(programs[point.program], point, folder / f"point-{number:03d}")
        results.append(played)
        _say(f"[{number + 1}/{asked.points}] {_line(played)}")
        for text in played.violations:
            _say(f"    {text}")
    Console().print(_table(results))
    for name, reason in skipped.items():
        sys.stdout.write(f"not soaked: {name}: {reason}\n")
    broken = sum(bool(played.violations) for played in results)
    sys.stdout.write(f"{len(results)} points, {broken} violated, seed {asked.seed}\n")
    if broken:
        sys.stdout.write(f"the places of violated points are kept in {folder}\n")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--points", type=int, default=64, help="how many, over all programs (64)")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--program", action="append", choices=NAMES, help="may be repeated; all by default")
    return parser


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
