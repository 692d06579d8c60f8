"""Completes what the ranks wrote of their end, and tells the first that failed from those it took with it.

Standard library only. What a rank wrote is untrusted: the job's own code could have written it.
"""

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plumbline_mcp.engines.local import writing

NO_FILE = "no exit file"
KILLED = f"{NO_FILE}: the rank was killed"
_MOST_BYTES = 65_536
_NAMED = 8
_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("code", "signal"), (int, type(None))),
    **dict.fromkeys(("timed_out", "stopped"), (bool,)),
    **dict.fromkeys(("host", "started", "ended", "reason"), (str,)),
    "rank": (int,),
}


@dataclass
class JobEnd:
    """How the job ended, as the supervisor saw it; ``status`` is that of its launcher, as from waitpid."""

    started: str
    ended: str = ""
    status: int | None = None
    timed_out: bool = False
    cancelled: str = ""
    hung: list[int] = field(default_factory=list)
    limit_s: float = 0.0
    seen: dict[int, float] = field(default_factory=dict)
    """When a rank's exit file was first there, by the monotonic clock (seconds)."""

    @property
    def code(self) -> int | None:
        """Exit code of the launcher, or minus the signal that ended it."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)


def exit_path(run: Path, rank: int) -> Path:
    """Where a rank says how it ended."""
    return run / "exit" / f"rank-{rank:05d}.json"


def without_exit(run: Path, ranks: int) -> list[int]:
    """Ranks that did not say yet how they ended."""
    return [rank for rank in range(ranks) if not exit_path(run, rank).is_file()]


def look(run: Path, ranks: int, end: JobEnd, now: float) -> None:
    """Note whose exit file has come: who ended first is told without the wall clock, which may be set."""
    waited_for = [rank for rank in range(ranks) if rank not in end.seen]
    end.seen.update({rank: now for rank in waited_for if exit_path(run, rank).is_file()})


def complete(run: Path, ranks: int, end: JobEnd) -> dict[str, Any]:
    """Write the exit files that are missing and ``exit/job.json``; returns the latter."""
    writing.own_folder(run / "exit")
    records = [_completed(run, rank, ranks, end) for rank in range(ranks)]
    ours = {exit_path(run, rank).name for rank in range(ranks)}
    for path in (run / "exit").iterdir():
        if path.name not in ours:
            writing.remove(path)  # halves of a killed rank, or what the job put there
    ending = _ending(records, end)
    _write(run / "exit" / "job.json", ending)
    return ending


def _write(path: Path, record: dict[str, Any]) -> None:
    writing.replace(path, json.dumps(record).encode())


def _completed(run: Path, rank: int, ranks: int, end: JobEnd) -> dict[str, Any]:
    path = exit_path(run, rank)
    record = _read(path, rank)
    missing = not record
    if missing:
        record = _missing(rank, end if ranks == 1 else None, end)
    hung = end.timed_out and (missing or rank in end.hung)
    if missing or hung:
        record["timed_out"] = hung
        _write(path, record)
    return record


def _read(path: Path, rank: int) -> dict[str, Any]:
    """What a rank wrote; nothing when it is no record of it (a folder, a pipe, nonsense)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            record = json.loads(file.read(_MOST_BYTES) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return record if _is_record(record, rank) else {}


def _is_record(record: object, rank: int) -> bool:
    """Whether it has the fields that a rank's wrapper writes, and ended in one way: code or signal."""
    if not isinstance(record, dict) or record.keys() != _FIELDS.keys():
        return False
    code, number = record["code"], record["signal"]
    typed = all(type(record[name]) in kinds for name, kinds in _FIELDS.items())
    return typed and record["rank"] == rank and (code is None) != (number is None)


def _missing(rank: int, alone: JobEnd | None, end: JobEnd) -> dict[str, Any]:
    """What is known of a rank without a file; of a lone one the launcher is the rank itself."""
    code = alone.code if alone else None
    return {
        "rank": rank,
        "code": code if code is not None and code > 0 else None,  # 0 is no evidence of a good end
        "signal": -code if code is not None and code < 0 else None,
        "timed_out": False,
        "host": os.uname().nodename,
        "started": end.started,
        "ended": end.ended,
        "stopped": bool(end.cancelled or end.timed_out),
        "reason": _why_missing(code, end),
    }


def _why_missing(code: int | None, end: JobEnd) -> str:
    if end.cancelled or end.timed_out:
        return f"{NO_FILE}: it was ended with the job"
    if code == 0:
        return f"{NO_FILE}: it was removed, or is no record"
    return KILLED if code is None or code < 0 else f"{NO_FILE}: the rank did not start"


def _ending(records: list[dict[str, Any]], end: JobEnd) -> dict[str, Any]:
    first = None if _launcher_killed(records, end) else _first_failed(records, end)
    clean = first is None and end.code == 0
    outcome = "cancelled" if end.cancelled else "timed_out" if end.timed_out else None
    return {
        "format": 1,
        "outcome": outcome or ("succeeded" if clean else "failed"),
        "reason": _reason(first, end),
        "failed_rank": None if first is None else first["rank"],
        "code": 0 if clean else _number(first, "code"),
        "signal": _number(first, "signal"),
        "started": end.started,
        "ended": end.ended,
    }


def _launcher_killed(records: list[dict[str, Any]], end: JobEnd) -> bool:
    """Whether what started several ranks was killed and took all of them along: none of them failed."""
    silent = all(str(one["reason"]).startswith(NO_FILE) for one in records)
    return len(records) > 1 and (end.code or 0) < 0 and silent


def _number(record: dict[str, Any] | None, name: str) -> int | None:
    value = (record or {}).get(name)
    return value if isinstance(value, int) and 0 <= value <= 255 else None


def _first_failed(records: list[dict[str, Any]], end: JobEnd) -> dict[str, Any] | None:
    """The rank that failed first: one that was killed without a word, else the earliest that nobody stopped.

    A rank that is told to stop still writes its file, so a missing one is no bystander. Of two whose files
    came between two looks, the wall clock of their wrappers decides.
    """
    failed = [one for one in records if (one.get("code"), one.get("signal")) != (0, None)]
    own = [one for one in failed if not one.get("stopped")]
    silent = [one for one in own if str(one.get("reason")).startswith(NO_FILE)]
    came = lambda one: (end.seen.get(one["rank"], math.inf), str(one.get("ended")))  # noqa: E731 - a key
    return min(silent or own, key=came, default=None)


def _reason(first: dict[str, Any] | None, end: JobEnd) -> str:
    if end.cancelled:
        return end.cancelled
    if end.timed_out:
        ranks = ", ".join(map(str, end.hung[:_NAMED])) + (" ..." if len(end.hung) > _NAMED else "")
        return f"time limit of {end.limit_s:g} s" + (f"; still running: rank {ranks}" if ranks else "")
    if first is None:
        return _of_the_launcher(end.code)
    how = f"signal {first['signal']}" if first.get("signal") else f"exit code {first.get('code')}"
    unknown = first.get("reason") == KILLED or (first.get("code"), first.get("signal")) == (None, None)
    return f"rank {first['rank']} failed first: {first.get('reason') if unknown else how}"


def _of_the_launcher(code: int | None) -> str:
    if code is not None and code < 0:
        return f"what started the ranks was killed by signal {-code}"
    return "" if code == 0 else f"the launcher ended with {code}; every rank ended by itself"
