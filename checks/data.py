"""The data check: training sees conversations as inference does, and learns what the model generates."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from checks.check import Check, Context, InjectedFault, NotApplicable, Progress, silent
from checks.conversations.causes import first_cause, template_named
from checks.conversations.faults import FAULTS
from checks.conversations.inputs import DataInputs
from checks.conversations.opening import (
    Settings,
    column_names,
    context_of,
    other_template,
    pack_note,
    recipe_of,
    rows_of,
    run_date,
    templates_of,
)
from checks.conversations.pairing import Pair, pair
from checks.conversations.parts import PARTS, judge_rows
from checks.conversations.rows_case import Rows
from checks.conversations.splitting import Split
from checks.conversations.wrapping import Unwrapped
from checks.records.documents import Document
from checks.records.rows import read_dump
from checks.records.run_rows import read_run_rows
from checks.records.runs import RunFolder, is_run_folder
from checks.records.workload import read_workload
from checks.references.expected import Reference, stop_names
from checks.references.tokenization import ReleaseTokenizer, stop_tokens
from checks.rules import CLEAN_ROW_TRIES
from checks.verdict import Coverage, Outcome, Part, Problem, part_of


def _on_case(fault: InjectedFault[Rows]) -> InjectedFault["DataCase"]:
    return InjectedFault(
        fault.name, fault.part, fault.code, lambda case: replace(case, rows=fault.plant(case.rows))
    )


@dataclass(frozen=True)
class DataCase:
    """Recorded rows beside the reference's."""

    rows: Rows
    run_problems: tuple[Problem, ...] | None
    world_size: int
    context: Context
    other_template: str = ""
    """The template that the run rendered with, where it is another one than the reference's."""


class DataCheck(Check[DataInputs, DataCase]):
    """Training sees each conversation as inference does, and the loss covers what the model generates.

    Recorded rows are compared, token by token, with the workload rendered by the release's own chat template
    and tokenised by its own tokenizer. Which tokens the loss should cover comes from two independent
    references: the prefix difference in token space, and a rendering of sentinel texts that is mapped back.
    Where they do not decide a turn, ``labels`` is inconclusive and says why.

    ``--packing documents``: whole documents share a sequence. Where the framework splits what does not fit
    (TRL's ``bfd_split``), pieces that together make up a whole row count as the row, wherever they lie, each
    token once; a row that lost a piece fails. The first token of a later piece has nothing of its row before
    it, so no loss has to reach it (and none may, behind another document).

    ``--packing wrapped``: the rows one after the other are one stream, sliced at ``--max-length``; documents
    are cut and lie in two or more sequences (TRL names it the same; ``group_texts`` of the transformers
    examples does it). Sequences are looked up in the workload's stream, so neither ranks nor shuffling of
    sequences matter; rows are put together again and judged like any others, and ids/packing judges the
    slices. The verdict is inconclusive where rows were shuffled before they were packed and sequences are out
    of order too, or where texts repeat so that sequences fit in several places. A supervised token that
    stands first in a slice is counted: no loss reaches it.

    A row of JSONL, and a data set by its columns, may also hold: ``attention_mask``, ``position_ids``
    (one integer a token); ``assistant_masks``, ``completion_mask``, ``loss_mask``, ``assistant_mask`` (0
    and 1: what the loss covers); ``loss_weights`` (one number a token, or one of the row); ``seq_lens``
    (lengths of the documents in a packed sequence); ``row_id``, or ``row_ids`` of a packed sequence (rows
    of the workload, from 0); ``epoch``, ``rank``, ``batch``. Rows of several epochs are told apart by
    ``epoch`` alone.

    Padding before a row needs an ``attention_mask``, since the row's tokens see it otherwise. A mask may
    number the documents of a packed sequence (1, 2, 3, ...): each by itself, from first token to last.

    Messages may say what they weigh in the loss, as fine-tuning formats define it: ``weight`` (OpenAI),
    ``train`` or ``training`` (axolotl), ``loss`` (ms-swift, XTuner), ``masked`` (torchtune). Whether the
    framework reads them, the recipe says: ``--supervise marked`` or ``all``. Without it rows that leave such
    a reply out of the loss are right, and rows that supervise it are inconclusive. Loss weights of the rows
    have to be equal, up to what the messages say.

    Parts: ids/content, ids/order, ids/truncation, ids/positions, ids/packing, ids/coverage, ids/epochs,
    labels, stop; for a run folder also run (what became of each rank).
    """

    name: ClassVar[str] = "data"
    title: ClassVar[str] = "Rows and labels"
    question: ClassVar[str] = (
        "Does training see each conversation as inference does, and does the loss cover the text that the "
        "model generates?"
    )
    reference: ClassVar[str] = (
        "the release's chat template in an own Jinja environment; its tokenizer.json read with the "
        "tokenizers library (which frameworks use too); spans by prefix difference and by sentinel texts"
    )
    rule: ClassVar[str] = (
        "ids equal; every generated token supervised and no other; a stop token supervised in every turn"
    )
    training: ClassVar[Literal["none", "one step", "run"]] = "none"
    records: ClassVar[tuple[str, ...]] = ("rows",)
    pattern: ClassVar[int] = 1
    example: ClassVar[str] = (
        "plumbline check data --model models/gpt-oss-20b --workload train.jsonl --rows rows.jsonl "
        "--date 2026-01-31"
    )
    order: ClassVar[int] = 30
    inputs = DataInputs
    faults = tuple(_on_case(fault) for fault in FAULTS)

    def open(self, inputs: DataInputs, progress: Progress) -> DataCase:
        """Read the rows, the workload and the release, and render the reference."""
        note = pack_note(inputs.framework)
        progress(0, 3, "step 1 of 3: reading the recorded rows")
        run = RunFolder.open(inputs.rows) if is_run_folder(inputs.rows) else None
        recorded = read_run_rows(run) if run else None
        dump = recorded.dump if recorded else read_dump(inputs.rows)
        settings = Settings(inputs, run.job.settings if run else {})
        if recorded and recorded.shifted and inputs.labels is None:
            settings = replace(settings, job={**settings.job, "labels": "shifted"})
        used = settings.resolved()
        if run and used["date"] is None:
            used["date"] = run_date(run)
        progress(1, 3, "step 2 of 3: reading the workload")
        conversations = read_workload(inputs.workload, column_names(used["columns"], "columns"))
        progress(2, 3, "step 3 of 3: loading the release's tokenizer and template")
        tokenizer = ReleaseTokenizer.load(inputs.model)
        stops = stop_tokens(inputs.model, tokenizer)
        templates = templates_of(inputs, used, tokenizer, conversations)
        reference = Reference(templates, tokenizer, stops, inputs.supervise)
        ranks = run.job.world_size if run else 1
        recipe = recipe_of(used, dump, tokenizer, stops, templates, ranks, inputs.supervise)
        rows = rows_of(reference, conversations, dump, recipe, progress)
        context = context_of(inputs, run, dump, used, templates, stop_names(tokenizer, stops), note)
        other = other_template(run, templates, used, tokenizer, conversations)
        problems = recorded.problems if recorded else None
        return DataCase(rows, problems, recipe.world_size, context, other)

    def context(self, inputs: DataInputs, case: DataCase) -> Context:
        """Target, settings and evidence."""
        return case.context

    def judge(self, case: DataCase, progress: Progress) -> list[Part]:
        """Compare every recorded row with its reference."""
        if case.run_problems is None:
            return judge_rows(case.rows, progress)
        lost = sum(problem.outcome is Outcome.INCONCLUSIVE for problem in case.run_problems)
        coverage = Coverage(judged=case.world_size - lost, total=case.world_size, unit="ranks")
        run = part_of("run", case.run_problems, coverage=coverage)
        if case.run_problems:
            return [run, *(_unfinished(name) for name in PARTS)]
        return [run, *template_named(judge_rows(case.rows, progress), case.other_template)]

    def to_mend_first(self, parts: list[Part], outcome: Outcome) -> tuple[Part, Problem] | None:
        """Of failures the cause before what follows from it (`first_cause`)."""
        return first_cause(parts) if outcome is Outcome.FAIL else super().to_mend_first(parts, outcome)

    def smallest(self, case: DataCase) -> DataCase:
        """One row that is judged clean (with what lies in its sequences), else the first."""
        rows = case.rows
        first = min((d.sequence.epoch for d in rows.documents if d.sequence.epoch is not None), default=None)
        documents = [d for d in rows.documents if d.sequence.epoch == first]
        documents.sort(key=lambda document: not isinstance(document.sequence, Split))
        pairs = pair(documents[:CLEAN_ROW_TRIES], list(rows.rows), rows.recipe.terms).pairs
        if not pairs:
            raise NotApplicable("no recorded row is a row of the workload")
        sequences = dict.fromkeys(each.document.sequence.index for each in pairs)
        pieces = [replace(case, rows=_slice(rows, index, pairs), run_problems=None) for index in sequences]
        return next((piece for piece in pieces if _is_rich(piece) and _is_clean(self, piece)), pieces[0])


def _unfinished(name: str) -> Part:
    reason = "the run did not finish, or did not record, on every rank"
    return Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=reason)


def _slice(rows: Rows, sequence: int, pairs: tuple[Pair, ...]) -> Rows:
    """The rows in one sequence, or one row that packing cut and those in the sequences that hold it."""
    own = (each.document for each in pairs if each.document.sequence.index == sequence)
    held = {index for document in own for index in _recorded_in(document)}
    chosen = [each for each in pairs if _recorded_in(each.document) <= held]
    return replace(
        rows,
        documents=tuple(each.document for each in chosen),
        rows=tuple(each.row for each in chosen),
        recipe=replace(rows.recipe, epochs=None),
        wrapped=tuple(each for each in rows.wrapped if each.index in held),
        repeated=(),
        recorded=tuple(each for each in rows.recorded if each.sequence.index in held),
    )


def _recorded_in(document: Document) -> set[int]:
    """The recorded sequences that hold a document: several where packing cut it."""
    sequence = document.sequence
    if isinstance(sequence, Unwrapped):
        return {index for _, index, _ in sequence.pieces}
    return {sequence.index}


def _is_rich(case: DataCase) -> bool:
    """Whether every fault has something to act on: a decided turn and, where rows are packed, an edge."""
    decided = any(turn.decided and turn.supervised for row in case.rows.rows for turn in row.turns)
    packing, documents = case.rows.recipe.packing, case.rows.documents
    if packing == "wrapped" or case.rows.recorded:
        decided &= any(len(_recorded_in(document)) > 1 for document in documents)
    return decided and (packing != "documents" or any(document.number for document in case.rows.laid))


def _is_clean(check: DataCheck, case: DataCase) -> bool:
    return all(part.outcome is not Outcome.FAIL for part in check.judge(case, silent))


CHECK = DataCheck()
