"""``python -m tests.benchmarks [NAME ...]``: measure, print the table, write ``bench.json``."""

import json
import os
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import Absent, Result, discover, measure


def main(names: list[str]) -> int:
    """Measure the named benchmarks, or all; 0 when each is within its target."""
    found = discover()
    unknown = sorted(set(names) - set(found))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; known: {', '.join(found)}\n")
        return 3
    results: list[Result] = []
    absent: dict[str, str] = {}
    for name in names or found:
        sys.stderr.write(f"measuring {name} against {found[name].peer} ...\n")
        try:
            results.append(measure(found[name]))
        except Absent as missing:
            absent[name] = str(missing)
    Console().print(_table(results))
    for name, reason in absent.items():
        sys.stdout.write(f"not measured: {name}: {reason}\n")
    _write(results, absent)
    return 0 if all(result.ok for result in results) else 1


def _table(results: list[Result]) -> Table:
    table = Table(title="seconds, median of interleaved rounds")
    for column in ("benchmark", "ours", "peer", "peer is", "ratio", "target", "ok"):
        table.add_column(column, justify="right" if column in ("ours", "peer", "ratio", "target") else "left")
    for r in results:
        table.add_row(
            r.name,
            f"{r.ours_s:.3f}",
            f"{r.peer_s:.3f}",
            r.peer,
            f"{r.ratio:.2f}",
            f"<= {r.target:.2f}",
            "yes" if r.ok else "NO",
        )
    return table


def _write(results: list[Result], absent: dict[str, str]) -> None:
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    content = {"machine": machine, "results": [r.as_json() for r in results], "not_measured": absent}
    temporary = Path("bench.json.new")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace("bench.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
