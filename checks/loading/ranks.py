"""What became of the ranks of a load: died, ended without records, or recorded by a recorder that failed."""

from collections.abc import Iterator, Sequence

from checks.loading.case import PASSES
from checks.records.model_records import RankModel
from checks.records.run_ends import died
from checks.records.runs import Exit, RunFolder
from checks.verdict import Outcome, Place, Problem


def rank_problems(
    run: RunFolder, ranks: list[RankModel], moments: Sequence[str] = PASSES, what: str = "loaded model"
) -> list[Problem]:
    """A rank that died is a fail, one that ran while its recorder failed is inconclusive.

    ``what`` every rank has to have recorded, at one of the ``moments``.
    """
    exits, recorded = {each.rank: each for each in run.exits()}, {rank.rank: rank for rank in ranks}
    return [
        problem
        for rank in range(run.job.world_size)
        for problem in _of_rank(run, rank, exits.get(rank), recorded.get(rank), moments, what)
    ]


def _of_rank(
    run: RunFolder,
    rank: int,
    ended: Exit | None,
    recorded: RankModel | None,
    moments: Sequence[str],
    what: str,
) -> Iterator[Problem]:
    place, log = Place(rank=rank), f"read logs/rank-{rank:05d}.err of the run"
    if ended is None or not ended.clean:
        yield died(run, rank, ended)
    elif recorded is not None and recorded.failed:
        yield Problem(
            code="recorder-failed",
            outcome=Outcome.INCONCLUSIVE,
            message=f"rank {rank} ran while its recorder failed: {_plain(recorded.failed)}",
            place=place,
            next_step=f"{log}, and rerun the procedure",
        )
    elif recorded is None or not any(recorded.at(when) for when in moments):
        yield Problem(
            code="nothing-recorded",
            outcome=Outcome.INCONCLUSIVE,
            message=f"rank {rank} ended well and recorded no {what}",
            place=place,
            next_step=log,
        )


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
