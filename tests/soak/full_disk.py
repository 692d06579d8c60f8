"""The disk fills at a seeded moment: a sentence says so, and the same command works once there is space."""

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import left_behind
from tests.soak.points import Clean, judge_rerun, said
from tests.soak.programs import Place, Skipped

SLACK = 16 * 2**20
"""Space for what a run needs besides what it leaves: scratch of a job, SQLite's log, temporary files."""
DISK = "disk"


@dataclass
class Filled:
    """What came of a run on a disk with ``free`` bytes."""

    program: str
    free: int
    code: int = 0
    told: str = ""
    enough: bool = False
    violations: list[str] = field(default_factory=list)


def fractions(count: int, seed: int) -> list[float]:
    """Free space as a share of what a clean run leaves: from none to a little more than enough."""
    chosen = random.Random(seed)
    return [0.0, *(chosen.uniform(0.0, 1.2) for _ in range(count - 1))]


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of ``size`` bytes at ``folder``. Raises `Skipped` without the right to mount one."""
    folder.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        raise Skipped("making a small file system needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def play_full(clean: Clean, fraction: float, folder: Path) -> Filled:
    """Run the program with too little space, free it, and run it again."""
    free = int(clean.size * fraction) // 4096 * 4096
    filled, place = Filled(clean.program.name, free), Place(folder, DISK)
    size = 3 * clean.size + SLACK
    with small_disk(folder / DISK, size) as disk:
        clean.program.prepare(place)
        padding = disk / "padding"
        _pad(padding, disk, free)
        filled.code = clean.program.finish(clean.program.start(place), place)
        filled.told = said(place)
        padding.unlink()
        filled.violations = _judge(clean, place, filled)
        filled.violations += left_behind.half_written(place, clean.finished) + left_behind.doctor(place)
        filled.violations += judge_rerun(clean, place)
    return filled


def _pad(padding: Path, disk: Path, free: int) -> None:
    """Leave ``free`` bytes."""
    answer = subprocess.run(
        ["df", "--block-size=1", "--output=avail", str(disk)], capture_output=True, text=True, check=True
    )
    left = int(answer.stdout.split()[-1]) - free
    with padding.open("wb") as file:
        while left > 0:
            left -= file.write(bytes(min(left, 2**20)))


def _judge(clean: Clean, place: Place, filled: Filled) -> list[str]:
    """A sentence that names the space and a next step, an honest verdict, or all that a clean run leaves."""
    with_free = f"with {filled.free} bytes free, exit code {filled.code}: {filled.told or 'nothing said'}"
    if "Traceback" in filled.told or "crashed" in filled.told:
        return [with_free]
    if filled.code == clean.code and left_behind.facts(place) == clean.facts:
        filled.enough = True
        return []
    return [] if _refused(place, filled, clean) else [with_free]


def _refused(place: Place, filled: Filled, clean: Clean) -> bool:
    try:
        answers = (place.folder / "out").read_text()
        answer = json.loads(answers.splitlines()[-1] if clean.program.messages else answers)
    except (ValueError, IndexError):
        return False
    if clean.program.messages:  # a server tells its caller, and goes on
        return bool(answer["result"]["isError"]) and "space" in json.dumps(answer)
    if filled.code == 3:
        return "space" in f"{answer.get('error')} {answer.get('next_step')}" and bool(answer.get("next_step"))
    return filled.code == 2 and ("outcome" in answer or "exits" in answer)
