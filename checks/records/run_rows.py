"""The rows that every rank of a run recorded, with what became of each rank."""

from dataclasses import dataclass, replace

from checks.errors import BadInput, Inconclusive
from checks.records.rows import Dump, Sequence
from checks.records.rows_safetensors import read_safetensors, rows_metadata
from checks.records.run_ends import died, refuse_cancelled
from checks.records.runs import RunFolder
from checks.verdict import Evidence, Outcome, Place, Problem


@dataclass(frozen=True)
class RunRows:
    """``problems``: ranks that died (fail) or recorded nothing (inconclusive); ``shifted``: as the
    records say.
    """

    dump: Dump
    problems: tuple[Problem, ...]
    shifted: bool


def read_run_rows(run: RunFolder) -> RunRows:
    """Every sequence of every rank, by epoch, batch and rank.

    Raises `NotEvaluated` of a job that was cancelled, `Inconclusive` when a record does not hold.
    """
    refuse_cancelled(run)
    sequences, evidence, layouts = list[Sequence](), list[Evidence](), set[str]()
    for folder in run.rank_folders():
        rank = int(folder.rpartition("-")[2]) if folder.rpartition("-")[2].isdecimal() else -1
        for name in run.files(f"{folder}/rows-"):
            path = run.verified(name)
            try:
                part = read_safetensors(path)
                metadata = rows_metadata(path)
            except BadInput as error:
                raise Inconclusive(f"run {run.job.run_id}: {error.message}", error.next_step) from error
            if any(sequence.rank != rank for sequence in part.sequences):
                raise Inconclusive(f"run {run.job.run_id}: {name} says it is of another rank")
            layouts.add(metadata.get("labels", "aligned"))
            sequences += part.sequences
            evidence.append(run.evidence(name, "rows"))
    if len(layouts) > 1:
        raise Inconclusive(
            f"run {run.job.run_id}: ranks record labels differently: {', '.join(sorted(layouts))}"
        )
    sequences.sort(key=lambda each: (each.epoch or 0, each.batch or 0, each.rank))
    numbered = tuple(replace(sequence, index=number) for number, sequence in enumerate(sequences))
    evidence.append(run.evidence("job.json", "job"))
    problems = tuple(_rank_problems(run, {sequence.rank for sequence in sequences}))
    return RunRows(Dump(numbered, "run folder", tuple(evidence)), problems, layouts == {"shifted"})


def _rank_problems(run: RunFolder, recorded: set[int]) -> list[Problem]:
    exits = {exit_.rank: exit_ for exit_ in run.exits()}
    problems = []
    for rank in range(run.job.world_size):
        ended = exits.get(rank)
        if ended is None or not ended.clean:
            problems.append(died(run, rank, ended))
        elif rank not in recorded:
            problems.append(
                Problem(
                    code="nothing-recorded",
                    outcome=Outcome.INCONCLUSIVE,
                    message=f"rank {rank} ended well and recorded no rows",
                    place=Place(rank=rank),
                    next_step=_LOG,
                )
            )
    return sorted(problems, key=lambda problem: problem.code == "rank-stopped")


_LOG = "read the rank's log in the run folder"
