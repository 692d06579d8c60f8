"""What became of a job and of its ranks, in the words of every check that reads a run."""

from checks.errors import NotEvaluated
from checks.records.runs import Exit, RunFolder
from checks.verdict import Place, Problem

_LAST_LINE = 300
_TAIL = 64 * 1024
_MAX_REASON = 200
_NOTHING = "(none)"
_REFUSED, _SAYS = 3, "refused: "


def refuse_cancelled(run: RunFolder) -> None:
    """Nothing is judged of a job that was cancelled, by its user or at its disk limit. Raises `NotEvaluated`.

    What such a job left says where it was, not what the framework does: its ranks were told to stop.
    """
    ending = run.ending()
    if ending is None or ending.outcome != "cancelled":
        return
    said = _plain(ending.reason)[:_MAX_REASON]
    why = said.removeprefix("cancelled")
    if why == said and said:
        why = f": {said}"
    raise NotEvaluated(f"run {run.job.run_id}: the job was cancelled{why}", "run it again")


def refuse_refused(run: RunFolder) -> None:
    """Nothing is judged of a job whose recipe or release the framework does not take. Raises `NotEvaluated`.

    A binding ends such a job with code 3 and one line that says why, on every rank that was not told to stop.
    """
    exits = run.exits()
    ended = [each for each in exits if not each.stopped]
    if not ended or len(exits) < run.job.world_size or any(each.code != _REFUSED for each in ended):
        return
    said = [last_line(run, each.rank) for each in ended]
    if all(line.startswith(_SAYS) for line in said):
        why = said[0].removeprefix(_SAYS)
        raise NotEvaluated(
            f"run {run.job.run_id}: the framework refused it: {why}",
            "name a release and a recipe that this version of the framework takes",
        )


def died(run: RunFolder, rank: int, ended: Exit | None) -> Problem:
    """The failure of a rank that did not end well; ``rank-stopped``: another one failed before it.

    ``ended``: its exit file, None where it left none.
    """
    bystander = ended is not None and ended.stopped and not ended.timed_out
    return Problem(
        code="rank-stopped" if bystander else "rank-died",
        message=f"rank {rank} {how_it_ended(run, rank, ended)}",
        place=Place(rank=rank, file=_log(rank)),
        next_step=where_to_look(run, rank, ended),
    )


def how_it_ended(run: RunFolder, rank: int, ended: Exit | None) -> str:
    """What follows "rank 0" in a message: how it ended, with the last line it wrote to stderr."""
    line = last_line(run, rank)
    if ended is not None and ended.timed_out and line == _NOTHING:
        return _how(run, ended)
    return f"{_how(run, ended)}; its last line of stderr: {line}"


def where_to_look(run: RunFolder, rank: int, ended: Exit | None) -> str:
    """The next step: the rank's log; of one whose time was up the limit, then the log if it says anything."""
    if ended is None or not ended.timed_out:
        return f"read {_log(rank)} of the run"
    empty = last_line(run, rank) == _NOTHING
    seen = "where the rank waits" if empty else f"how far it came ({_log(rank)})"
    return f"run it again with a longer time limit; if that is used up too, look at {seen}"


def last_line(run: RunFolder, rank: int) -> str:
    """The last line a rank wrote to stderr, escaped and clipped: text from a job, untrusted."""
    name = _log(rank)
    if name not in run.manifest:
        return _NOTHING
    path = run.verified(name)
    with path.open("rb") as file:
        file.seek(max(0, run.manifest[name][1] - _TAIL))
        lines = [line for line in file.read(_TAIL).decode("utf-8", "replace").splitlines() if line.strip()]
    return _plain(lines[-1] if lines else _NOTHING)[:_LAST_LINE]


def _log(rank: int) -> str:
    return f"logs/rank-{rank:05d}.err"


def _how(run: RunFolder, ended: Exit | None) -> str:
    if ended is None:
        return "left no exit file"
    if ended.timed_out:
        limit = f" of {run.job.time_limit_s:g} s" if run.job.time_limit_s else ""
        return f"ran out of time: it was still running at the job's time limit{limit}"
    if ended.stopped:
        return "was told to stop after another rank failed"
    if ended.signal is not None:
        return f"was ended by signal {ended.signal}"
    return f"ended with code {ended.code}"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
