"""Parts ``ranks`` and ``supervision``: every rank made every step on as many rows; the loss covered some."""

from collections.abc import Iterator

from checks.optimization.case import StepCase
from checks.optimization.tokens import supervised_mask
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of


def ranks_part(case: StepCase) -> Part:
    """Exit files, recorders, steps and rows of every rank."""
    problems = [*case.rank_problems, *_steps(case), *_rows(case), *_repeated(case)]
    lost = len({problem.place.rank for problem in case.rank_problems})
    coverage = Coverage(judged=case.world_size - lost, total=case.world_size, unit="ranks")
    skipped = sorted({step for rank in case.ranks for step in rank.skipped})
    partly = sorted({step for rank in case.ranks for step in rank.partly})
    told = ((_SKIPPED, skipped), (_PARTLY, partly))
    notes = tuple(text.format(count=len(steps), first=steps[0]) for text, steps in told if steps)
    return part_of("ranks", problems, coverage=coverage, notes=notes)


_SKIPPED = (
    "{count} steps, first step {first}, were left out by the gradient scaler: a gradient was not finite"
)
_PARTLY = (
    "{count} steps, first step {first}, were left out by the gradient scaler for some of several optimizers;"
    " their tensors are not judged"
)


def _steps(case: StepCase) -> Iterator[Problem]:
    """Every rank recorded the same steps."""
    for rank in case.ranks:
        missing = sorted(set(case.steps) - {line.step for line in rank.lines})
        if missing:
            yield Problem(
                code="step-missing",
                message=f"rank {rank.rank} did not make step {missing[0]}, which other ranks made",
                place=Place(rank=rank.rank, step=missing[0]),
                expected=f"{len(case.steps)} steps",
                found=f"{len(rank.lines)} steps",
            )


def _rows(case: StepCase) -> Iterator[Problem]:
    """Every rank took as many micro-batches and rows in each step as the first did."""
    for step in case.steps:
        counts = {}
        for rank in case.ranks:
            line = rank.line(step)
            if line is not None and all(batch.rows is not None for batch in line.micro_batches):
                counts[rank.rank] = (
                    len(line.micro_batches),
                    sum(batch.rows or 0 for batch in line.micro_batches),
                )
        wanted = next(iter(counts.values()), (0, 0))
        for number, found in counts.items():
            if found != wanted:
                yield Problem(
                    code="rows-differ",
                    message=f"rank {number} trained on another number of rows than rank {min(counts)}",
                    place=Place(rank=number, step=step),
                    expected=f"{wanted[1]} rows in {wanted[0]} micro-batches",
                    found=f"{found[1]} rows in {found[0]} micro-batches",
                    next_step="give every rank as many rows: pad or drop the rest of the data",
                )


def _repeated(case: StepCase) -> Iterator[Problem]:
    """Ranks that split the data do not train on the same rows in every recorded step.

    Ranks that train alone from one seed agree in every gradient and weight: only their rows tell.
    """
    if case.recipe.layout not in (None, "ddp", "fsdp2") or not case.full_steps:
        return
    seen: dict[tuple[str, ...], int] = {}
    for rank in case.ranks:
        rows = tuple(
            rank.full[step].tensors[name].digest()
            for step in case.full_steps
            for name in sorted(rank.full[step].tensors)
            if name.startswith("micro.") and name.endswith(".input_ids")
        )
        first = seen.setdefault(rows, rank.rank)
        if rows and first != rank.rank:
            yield Problem(
                code="rows-repeated",
                message=f"ranks {first} and {rank.rank} trained on the same rows in every recorded step",
                place=Place(rank=rank.rank, step=case.full_steps[0]),
                expected="rows that no other rank trains on",
                found=f"the rows of rank {first}",
                next_step="look for ranks that were not told their rank, or a sampler that ignores it",
            )


def supervision_part(case: StepCase) -> Part:
    """Every step's loss covered tokens, and as many as the labels say."""
    problems = [*_nothing_supervised(case), *_miscounted(case)]
    known = sum(_supervised(case, step) is not None for step in case.steps)
    coverage = Coverage(judged=known, total=len(case.steps), unit="steps")
    return part_of("supervision", problems, coverage=coverage)


def _supervised(case: StepCase, step: int) -> int | None:
    counts = [line.supervised for line in case.lines(step)]
    return None if None in counts or not counts else sum(count or 0 for count in counts)


def _nothing_supervised(case: StepCase) -> Iterator[Problem]:
    for step in case.steps:
        if _supervised(case, step) == 0:
            yield Problem(
                code="nothing-supervised",
                message="no token of the whole step is supervised, so nothing can be learnt from it",
                place=Place(step=step),
                expected="at least one supervised token",
                found="0",
                next_step="run the data check: labels may be masked or cut away by the maximum length",
            )


def _miscounted(case: StepCase) -> Iterator[Problem]:
    """Where labels were recorded, the recorder's count is that of its labels: else its record is unsound."""
    for step in case.full_steps:
        for rank, record in case.tensors(step):
            line = next(each for each in case.ranks if each.rank == rank).line(step)
            for number, batch in enumerate(line.micro_batches if line else ()):
                mask = supervised_mask(record, number)
                if mask is not None and batch.supervised is not None and mask.sum() != batch.supervised:
                    yield Problem(
                        code="counts-differ",
                        outcome=Outcome.INCONCLUSIVE,
                        message=f"micro-batch {number} says another supervised count than its labels",
                        place=Place(rank=rank, step=step),
                        expected=str(int(mask.sum())),
                        found=str(batch.supervised),
                    )
