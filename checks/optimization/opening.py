"""Opens a run for the optimizer-step check: the recipe, what became of each rank, and what each recorded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from checks.check import Context, Inputs, Progress
from checks.errors import BadInput, Inconclusive, NotEvaluated
from checks.optimization.case import StepCase
from checks.records.run_ends import died, refuse_cancelled
from checks.records.runs import RunFolder, read_json
from checks.records.step_soundness import require_sound
from checks.records.steps import RankSteps, read_rank
from checks.references.packs import Pack, load_pack, pack_evidence
from checks.references.recipe import read_recipe
from checks.verdict import Evidence, Outcome, Place, Problem


class StepInputs(Inputs):
    """What an optimizer-step check judges."""

    run: Path = Field(description="run folder of the procedure train_step, or its id")
    framework: str | None = Field(
        None,
        description="connection pack whose declared decay is followed; by default that of the run's job",
    )


def open_case(inputs: StepInputs, progress: Progress) -> StepCase:
    """Read the recipe and the records. Raises `BadInput`, `NotEvaluated`, `Inconclusive`."""
    progress(0, None, "reading records")
    if not inputs.run.is_dir():
        raise BadInput(f"{inputs.run} is no run folder", "name a folder under runs/, or the id of a run")
    run = RunFolder.open(inputs.run)
    refuse_cancelled(run)
    pack = load_pack(inputs.framework or run.job.framework)
    recipe = read_recipe(run.job.settings, pack.decays())
    ranks, evidence = list[RankSteps](), list[Evidence]()
    for folder in run.rank_folders():
        if folder.rpartition("-")[2].isdecimal():
            rank, files = read_rank(run, folder)
            ranks.append(rank)
            evidence += files
    ranks.sort(key=lambda rank: rank.rank)
    problems = tuple(sorted(_rank_problems(run, ranks), key=lambda each: each.code == "rank-stopped"))
    if not any(rank.lines for rank in ranks) and not problems:
        raise NotEvaluated(
            f"run {run.job.run_id} of the procedure {run.job.procedure} recorded no training step",
            "run the procedure train_step: plumbline run train_step --model RELEASE --workload ROWS",
        )
    if len({rank.rank for rank in ranks}) < len(ranks) or any(r.rank >= run.job.world_size for r in ranks):
        raise Inconclusive(f"run {run.job.run_id} holds records of ranks that it did not launch")
    for rank in ranks:
        require_sound(rank)
    total = recipe.steps or max((line.step for rank in ranks for line in rank.lines), default=0)
    context = _context(inputs, run, pack, evidence)
    return StepCase(recipe, total, run.job.world_size, tuple(ranks), problems, context)


def _rank_problems(run: RunFolder, ranks: list[RankSteps]) -> Iterator[Problem]:
    """A rank that died is a fail, one that ran while its recorder failed is inconclusive."""
    exits, recorded = {each.rank: each for each in run.exits()}, {rank.rank: rank for rank in ranks}
    for rank in range(run.job.world_size):
        ended, steps = exits.get(rank), recorded.get(rank)
        log = f"logs/rank-{rank:05d}.err"
        if ended is None or not ended.clean:
            yield died(run, rank, ended)
        elif steps is None or steps.failed or not steps.lines:
            failed = steps is not None and steps.failed
            yield Problem(
                code="recorder-failed" if failed else "nothing-recorded",
                outcome=Outcome.INCONCLUSIVE,
                message=f"rank {rank} ran while its recorder failed"
                if failed
                else f"rank {rank} ended well and recorded no training step",
                place=Place(rank=rank, file=log),
                next_step=f"read {log} of the run, and rerun the procedure",
            )


def _context(inputs: StepInputs, run: RunFolder, pack: Pack, evidence: list[Evidence]) -> Context:
    settings: dict[str, JsonValue] = {**run.job.settings, "pack_digest": pack.digest}
    return Context(
        target={"run": str(inputs.run), "framework": pack.name, **run.job.inputs},
        settings=settings,
        evidence=(run.evidence("job.json", "job"), *evidence, *pack_evidence(pack)),
        stand_ins=tuple(str(each)[:200] for each in _environment(run).get("stand_ins", [])[:20]),
        run_id=run.job.run_id,
        confinement=run.job.confinement,
    )


def _environment(run: RunFolder) -> dict[str, Any]:
    name = next((n for n in run.files("records/") if n.endswith("/environment.json")), None)
    value = read_json(run.verified(name)) if name else {}
    listed = isinstance(value, dict) and isinstance(value.get("stand_ins", []), list)
    return value if listed else {}
